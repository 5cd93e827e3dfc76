import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Skindx

from skindx.core.errors import UserError
from skindx_bench.harness import netlab
from skindx_bench.harness.netlab import Link, NetLab

NAMED = Path("/run/netns")


def _named(owner: int) -> list[str]:
    """The namespaces of a process, as `ip` knows them."""
    return [path.name for path in NAMED.iterdir() if path.name.startswith(f"skindx-{owner}-")]


def _gone(owner: int) -> bool:
    """Wait for the end of the owner's namespaces."""
    deadline = time.monotonic() + 20
    while _named(owner) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not _named(owner)


def test_nodes_reach_one_another_and_links_are_limited(lab_here: None) -> None:
    with NetLab(2, Link(1000)) as lab:
        assert len(_named(os.getpid())) == 3
        talk = (
            "import socket\n"
            "s = socket.create_server(('', 7000))\n"
            "print('ready', flush=True)\n"
            "print(s.accept()[0].recv(99).decode(), flush=True)\n"
        )
        server = subprocess.Popen(
            lab.command(1, sys.executable, "-c", talk), stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        say = (
            f"import socket; socket.create_connection(('{lab.address(1)}', 7000)).send(b'good day')"
        )
        subprocess.run(lab.command(0, sys.executable, "-c", say), check=True, timeout=30)
        assert server.communicate(timeout=30)[0] == "good day\n"
        lab.limit(Link(100))
        reported = subprocess.run(
            lab.command(1, "tc", "qdisc", "show", "dev", netlab.INTERFACE),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "tbf" in reported.stdout
        assert "rate 100Mbit burst 16Kb" in reported.stdout
    assert not _named(os.getpid())


def test_it_is_gone_after_an_exception(lab_here: None) -> None:
    def fails() -> None:
        with NetLab(1, Link(100)):
            raise RuntimeError("a rank has died")

    with pytest.raises(RuntimeError, match="a rank has died"):
        fails()
    assert not _named(os.getpid())


def test_it_is_gone_when_building_it_fails(lab_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlab, "INTERFACE", "a-name-too-long-for-an-interface")
    with pytest.raises(UserError, match=r"no emulated cluster .*`ip -n .*veth"):
        NetLab(1, Link(100)).__enter__()
    assert not _named(os.getpid())


OWNER = """
import signal, time
from skindx_bench.harness.netlab import Link, NetLab
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
with NetLab(2, Link(100)) as lab:
    print(lab._guard.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def owner(lab_here: None) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that has a lab of three namespaces."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_is_gone_when_its_owner_is_killed(
    owner: subprocess.Popen[str], how: signal.Signals
) -> None:
    assert owner.stdout is not None
    assert owner.stdout.readline()
    assert len(_named(owner.pid)) == 3
    owner.send_signal(how)
    assert owner.wait(30) != 0
    assert _gone(owner.pid)


def test_what_a_killed_guard_left_the_next_lab_removes(owner: subprocess.Popen[str]) -> None:
    assert owner.stdout is not None
    guard = int(owner.stdout.readline())
    os.killpg(guard, signal.SIGKILL)  # it leads a session of its own
    owner.kill()
    owner.wait(30)
    assert len(_named(owner.pid)) == 3
    with NetLab(1, Link(100)):
        assert not _named(owner.pid)


def test_without_root_one_sentence_tells_it(
    skindx: Skindx, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    code, _, reported = skindx("bench", "exchange")
    assert code == 2
    assert reported.count("\n") == 1
    assert "here is missing: root (run it with sudo" in reported


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else f"/sbin/{tool}")
    with pytest.raises(UserError, match=r"missing: tc \(apt-get install iproute2\)\.$"):
        netlab.require()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match=r"missing: Linux; tc"):
        netlab.require()
