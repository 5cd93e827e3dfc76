"""Where the ranks of a training meet."""

import socket

import pytest

from skindx.training.deepspeed import launch


def test_a_port_that_the_system_gives_to_no_connection() -> None:
    ports = {launch.free_port() for _ in range(20)}
    assert ports <= set(range(15_000, 30_000))
    assert len(ports) > 1


def test_a_port_in_use_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", launch.free_port()))
        listener.listen()
        taken = listener.getsockname()[1]
        monkeypatch.setattr(launch, "_PORTS", [taken] * 100)
        assert launch.free_port() not in (0, taken)
