import sys

import pytest

from skindx_bench.data import screen
from skindx_bench.harness import training
from skindx_bench.subjects import run_bench


@pytest.mark.lab
def test_keys_units_and_what_was_measured() -> None:
    result = run_bench("screen", smallest=True)
    units = {key: each.unit for key, each in result.figures.items()}
    assert units.pop("hash_per_core") == "images/s"
    assert units["screen_over_decode"] == "×"
    assert 0 < result.figures["screen_over_decode"].value < 1
    assert any("500 x 375 pixels, quality 90" in note for note in result.notes)


def test_a_peer_that_is_absent_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imagehash", None)
    monkeypatch.setattr(screen, "find_spec", lambda name: None)
    result = screen.run(screen.Config(images=2, rounds=3))
    assert not result.baselines
    assert any("pip install imagehash" in note for note in result.notes)


def test_the_images_differ_and_repeat_by_seed() -> None:
    assert training.noisy_jpegs(2, seed=5) == training.noisy_jpegs(2, seed=5)
    assert len({*training.noisy_jpegs(2, seed=5), *training.noisy_jpegs(2, seed=6)}) == 4
