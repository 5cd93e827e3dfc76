"""The stages of an answer: each second counts once, and nothing stays watched."""

import time
from types import SimpleNamespace

import pytest

from skindx.models.detector import Detector
from skindx.models.ensemble import Ensemble
from skindx_bench.serve.serve import _parts, _watched


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_stage_inside_another_one_counts_alone() -> None:
    def outer() -> str:
        burn(0.02)
        work.inner()
        return "done"

    work = SimpleNamespace(inner=lambda: burn(0.05), outer=outer)
    before = dict(vars(work))
    with _watched({"outer": ((work, "outer"),), "inner": ((work, "inner"),)}) as taken_s:
        start = time.process_time()
        assert work.outer() == "done"
        work.inner()
        whole_s = time.process_time() - start
    assert taken_s["inner"] >= 0.1
    assert 0.02 <= taken_s["outer"] < taken_s["inner"]
    assert sum(taken_s.values()) <= whole_s
    assert vars(work) == before


def test_a_stage_that_raises_is_counted_and_raises() -> None:
    def fail() -> None:
        burn(0.01)
        raise ValueError("no photo")

    work = SimpleNamespace(fail=fail)
    with _watched({"fail": ((work, "fail"),)}) as taken_s, pytest.raises(ValueError, match="no"):
        work.fail()
    assert taken_s["fail"] >= 0.01
    assert work.fail is fail


def test_every_stage_names_functions_that_are_there() -> None:
    predictor = SimpleNamespace(
        ensemble=Ensemble.__new__(Ensemble), detector=Detector.__new__(Detector)
    )
    for own in _parts(predictor).values():  # type: ignore[arg-type]
        assert all(callable(getattr(owner, name)) for owner, name in own)
