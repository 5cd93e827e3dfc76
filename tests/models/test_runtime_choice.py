"""The fastest runtime is measured once on each machine, and remembered."""

import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from skindx.models.exports import backend_choice
from skindx.models.exports.backend_choice import fastest, remembered_choice


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/skindx/runtimes"


def _burning(seconds: float) -> Callable[[], None]:
    def call() -> None:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    return call


def test_the_fastest_takes_the_least_processor_time() -> None:
    """Waiting costs nothing: a busy machine must not change the choice."""
    candidates = {
        "slow": _burning(0.01),
        "fast": _burning(0.002),
        "waits": lambda: (time.sleep(0.02), _burning(0.005)()),
    }
    assert fastest(candidates) == "fast"


def test_a_choice_is_remembered_for_the_same_parts_alone(cache: Path) -> None:
    with remembered_choice({"bundle": "a"}) as choice:
        assert choice.name is None
        choice.remember("onnx fp32")
    with remembered_choice({"bundle": "a"}) as choice:
        assert choice.name == "onnx fp32"
    with remembered_choice({"bundle": "b"}) as choice:
        assert choice.name is None
    assert len(list(cache.glob("*.json"))) == 1


def test_another_processor_measures_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with remembered_choice({"bundle": "a"}) as choice:
        choice.remember("onnx fp32")
    monkeypatch.setattr(backend_choice, "cpu_flags", lambda: frozenset({"another"}))
    with remembered_choice({"bundle": "a"}) as choice:
        assert choice.name is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"fastest": 3}', "\xff"])
def test_a_damaged_cache_is_measured_again(text: str, cache: Path) -> None:
    with remembered_choice({"bundle": "a"}) as choice:
        choice.remember("onnx fp32")
    (file,) = cache.glob("*.json")
    file.write_text(text, encoding="latin-1")
    with remembered_choice({"bundle": "a"}) as choice:
        assert choice.name is None
        choice.remember("eager")
    assert json.loads(file.read_text()) == {"fastest": "eager"}


def test_a_cache_that_cannot_be_made_is_done_without(cache: Path) -> None:
    cache.parent.parent.mkdir()
    cache.parent.write_text("a file")
    for _ in range(2):
        with remembered_choice({"bundle": "a"}) as choice:
            assert choice.name is None
            choice.remember("eager")


def _measure(log: str) -> None:
    with remembered_choice({"bundle": "a"}) as choice:
        if choice.name is None:
            with Path(log).open("a") as file:
                file.write("x")
            time.sleep(0.3)
            choice.remember("eager")


def test_of_several_processes_one_measures(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_measure, args=(str(tmp_path / "log"),)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    assert (tmp_path / "log").read_text() == "x"
