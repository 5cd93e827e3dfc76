"""Machines side by side: which differences are real, by hand and by chance; bad files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skindx.core.errors import UserError
from skindx_bench.devices import devices
from skindx_bench.harness.compare import compare, difference, interval
from skindx_bench.harness.result import changed_settings
from skindx_bench.subjects import compare_results, run_bench

MACHINE = {"cpu": "A <b>", "cores": 2, "memory_gb": 8.0, "accelerator": "none"}


def figure(value: float, spread: tuple[float, float], n: int = 9, unit: str = "s") -> dict:
    return {"value": value, "unit": unit, "n": n, "spread": list(spread)}


def write(file: Path, figures: dict[str, Any], **more: Any) -> Path:
    written = {"bench": "toy", "date": "2026-01-01", "figures": figures, "hardware": MACHINE}
    file.write_text(json.dumps({**written, "versions": {}, **more}))
    return file


def test_the_notch_by_hand() -> None:
    # 1.57 times 2 over the root of 9
    assert interval(figure(10, (9, 11)), means=False) == pytest.approx(
        (10 - 3.14 / 3, 10 + 3.14 / 3)
    )
    assert interval(figure(10, (9, 11)), means=True) == (9, 11)


def test_a_difference_is_real_where_the_intervals_do_not_meet() -> None:
    near, far = figure(10.5, (9.5, 11.5)), figure(20, (19, 21))
    first = figure(10, (9, 11))
    both = (False, False)
    found = difference(first, near, means=both)
    assert found is not None
    assert not found.real
    found = difference(first, far, means=both)
    assert found is not None
    assert found.real
    assert found.ratio == 2
    assert found.interval[0] < 2 < found.interval[1]
    few = difference(figure(10, (9, 11), n=2), figure(20, (19, 21), n=2), means=both)
    assert few is not None
    assert not few.real
    assert difference(first, figure(1, (1, 1), unit="ms"), means=both) is None
    assert difference(first, figure(-1, (-2, 0)), means=both) is None


def test_equal_machines_rarely_look_different() -> None:
    rng = np.random.default_rng(0)

    def drawn() -> dict[str, Any]:
        low, middle, high = np.quantile(rng.normal(100, 5, 15), [0.25, 0.5, 0.75])
        return figure(float(middle), (float(low), float(high)), n=15)

    real = [difference(drawn(), drawn(), means=(False, False)) for _ in range(1000)]
    assert 0 < sum(noticed is not None and noticed.real for noticed in real) < 80


def test_figures_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a.json", {"x": figure(10, (9, 11)), "lonely": figure(1, (1, 1))})
    b = write(tmp_path / "b.json", {"x": figure(20, (19, 21))}, partial="stopped")
    compare_results([a, b], tmp_path / "page.html", others=False)
    shown = capsys.readouterr().out
    assert "2 (real)" in shown
    assert "PARTIAL, stopped" in shown
    assert "lonely" not in shown
    page = (tmp_path / "page.html").read_text()
    assert "2 (real)" in page
    assert "A &lt;b&gt;" in page
    assert "http" not in page  # one file, nothing is fetched


def test_other_work_is_not_compared_and_other_settings_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = "net, fp32, training"
    figures = {f"{key}: samples": figure(10, (9, 11)), "x": figure(1, (1, 1))}
    faster = {f"{key}: samples": figure(99, (98, 100)), "x": figure(2, (2, 2))}
    small = {key: {"samples": 4, "flops": 4e9}}
    large = {key: {"samples": 8, "flops": 8e9, "marks": ["other processes used 9 %"]}}
    a = write(tmp_path / "a.json", figures, parts=small, settings={"batch": 4})
    b = write(tmp_path / "b.json", faster, parts=large, settings={"rounds": 3})
    compare_results([a, b], tmp_path / "page.html", others=False)
    shown = capsys.readouterr().out
    sentence = (
        "b ran with other settings than a: batch the default and not 4, rounds 3 and not the "
        "default."
    )
    page = (tmp_path / "page.html").read_text()
    assert "not comparable, doubtful on b" in page
    for text in (shown, page):
        assert "2 (real)" in text
        assert sentence in text


def test_a_bench_writes_what_was_set_but_no_path(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    page = f"html={tmp_path / 'x.html'}"
    config = devices.Config.load(None, ["rounds=3", "sizes=[16]", page, "machines=[a.json]"])
    assert changed_settings(config) == {"rounds": 3, "sizes": [16]}
    run_bench("energy", file, smallest=True)
    assert json.loads(file.read_text())["settings"] == {"resamples": 20, "synthetic": True}


def test_one_name_for_two_machines(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    files = [
        write(tmp_path / name, {"x": figure(1, (1, 1))}) for name in ("a.json", "other/a.json")
    ]
    assert len(compare(files)[0].cells) == 2


def test_user_errors(tmp_path: Path) -> None:
    good = write(tmp_path / "a.json", {"x": figure(1, (1, 1))})
    with pytest.raises(UserError, match="two JSON files"):
        compare([good])
    with pytest.raises(UserError, match="does not exist"):
        compare([good, tmp_path / "none.json"])
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(UserError, match="no JSON file"):
        compare([good, tmp_path / "bad.json"])
    for wrong in (
        {"x": figure(float("nan"), (1, 1))},
        {"x": {"value": 1}},
        {"x": figure(1, (1, 1), n=0)},
        [],
    ):
        write(tmp_path / "bad.json", wrong)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="was not written by a bench"):
            compare([good, tmp_path / "bad.json"])
    with pytest.raises(UserError, match="share no figure"):
        compare([good, write(tmp_path / "b.json", {"y": figure(1, (1, 1))})])
    with pytest.raises(UserError, match="is a folder"):
        compare([good, good], tmp_path)
    with pytest.raises(UserError, match="measures nothing"):
        compare_results([good, good], others=True)
    with pytest.raises(UserError, match="takes no files"):
        run_bench("startup", files=[good])
    with pytest.raises(UserError, match="no --quick"):
        run_bench("startup", quick=True)
