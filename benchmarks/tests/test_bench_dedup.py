import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest

from skindx_bench.data import dedup
from skindx_bench.subjects import run_bench

KEYS = ["pairs_1m_r4_s", "pairs_200k_r4_s", "faiss_200k_r4_s", "exact"]


def tiny(**changes: float) -> dedup.Config:
    return dedup.Config.load(
        None, [*dedup.SMALLEST, *(f"{key}={value}" for key, value in changes.items())]
    )


@pytest.mark.lab
def test_keys_and_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("faiss")
    result = run_bench("dedup", tmp_path / "dedup.json", smallest=True)
    assert list(result.figures) == KEYS
    assert result.figures["exact"].value == 1.0
    assert [figure.n for figure in result.figures.values()] == [3, 3, 3, 1]
    assert json.loads((tmp_path / "dedup.json").read_text())["notes"] == list(result.notes)
    assert "one in ten" in capsys.readouterr().out


def test_a_slow_peer_is_run_once() -> None:
    pytest.importorskip("faiss")
    assert dedup.run(tiny(slow_s=0)).figures["faiss_200k_r4_s"].n == 1


def test_without_faiss_its_row_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> ModuleSpec | None:
        assert name == "faiss"
        return None

    monkeypatch.setattr(dedup, "find_spec", find)
    monkeypatch.setitem(sys.modules, "faiss", None)
    result = dedup.run(tiny())
    assert list(result.figures) == [key for key in KEYS if "faiss" not in key]
    assert "faiss is not installed" in result.notes[-1]


@pytest.mark.parametrize("wrong", ["lost", "distance"])
def test_a_wrong_join_is_not_exact(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    right = dedup.pairs_within

    def join(codes, radius):
        first, second, distance = right(codes, radius)
        if wrong == "lost":
            return first[1:], second[1:], distance[1:]
        return first, second, distance + 1

    monkeypatch.setattr(dedup, "pairs_within", join)
    assert dedup.run(tiny()).figures["exact"].value == 0.0


def test_codes_are_seeded_and_hold_near_pairs() -> None:
    codes = dedup.planted_codes(2000, 4, 0)
    np.testing.assert_array_equal(codes, dedup.planted_codes(2000, 4, 0))
    distances = dedup.pairs_within(codes, 6)[2]
    assert len(distances) >= 200
    assert set(range(7)) <= set(distances.tolist())
