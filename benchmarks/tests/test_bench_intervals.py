import json
from pathlib import Path

import pytest

from skindx_bench.honesty import intervals
from skindx_bench.honesty.intervals import Cell, cells_of, is_approximate, table
from skindx_bench.subjects import run_bench


@pytest.mark.lab
def test_every_figure_has_a_coverage_and_a_row(tmp_path: Path) -> None:
    file = tmp_path / "intervals.json"
    result = run_bench("intervals", file, [f"out={tmp_path}"], smallest=True)
    assert set(result.figures) == {f"{name}_least_coverage_40" for name in intervals.METHODS}
    assert all(0 <= figure.value <= 100 for figure in result.figures.values())
    text = (tmp_path / "intervals.md").read_text()
    assert text.count("\n") == 2 + 2 * len(intervals.METHODS)
    assert table(cells_of(json.loads(file.read_text()))) == text


def test_an_interval_that_covers_too_rarely_is_labelled() -> None:
    good, bad = (Cell("top1", "calibrated", 11, False, 1000, n, 0.1) for n in (940, 880))
    assert not is_approximate(good)
    assert is_approximate(bad)
    assert "88.0 % (approximate)" in table([good, bad])


@pytest.mark.long
def test_intervals_hold_the_true_figure() -> None:
    """From 120 images on in at least 93 of 100 samples, as far as 300 samples can tell."""
    result = run_bench("intervals", None, ["sizes=[120, 409]", "samples=300", "draws=200"])
    for name, figure in result.figures.items():
        assert figure.spread[1] >= 100 * intervals.ENOUGH, name
