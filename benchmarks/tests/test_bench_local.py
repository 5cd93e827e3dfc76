import json
from pathlib import Path

import pytest

from skindx.core.errors import UserError
from skindx.data.manifest import Record
from skindx_bench.subjects import run_bench
from skindx_bench.train.local import Case, CaseRows, Config, LocalStudy
from skindx_bench.train.local_rank import capped

_CASE = Case(most=9, images=320, rates=(0.1,), training={})
_STUDY = LocalStudy(
    training={"recipe": {"batch": 32}}, cases={"x": _CASE}, arms={"dense": {}, "local": {}}
)


@pytest.mark.lab
@pytest.mark.distributed
def test_it_tunes_trains_times_and_goes_on_where_it_stopped(
    lab_here: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, sets = tmp_path / "local.json", [f"out={tmp_path}"]
    stopped = run_bench("local", sets=[*sets, "at_most=1"], smallest=True)
    assert "call it again" in stopped.partial
    run_bench("local", file, sets, smallest=True)
    written = json.loads(file.read_text())
    assert "partial" not in written
    assert set(written["figures"]) == {
        *(f"painted_{arm}_minus_dense_balanced" for arm in ("local", "apart_soup")),
        *(f"painted_apart_{way}_minus_dense_balanced" for way in ("member0", "ensemble")),
        "painted_bytes_less_than_dense",
        *(f"painted_local_over_{arm}_1000mbit" for arm in ("dense", "apart_ensemble")),
    }
    assert written["figures"]["painted_bytes_less_than_dense"]["value"] > 20
    rows = sorted(path.name for path in tmp_path.glob("painted/*.json"))
    assert len(rows) == 3 * 2 + 3  # arms and seeds, and the steps of each arm
    again = run_bench("local", sets=[*sets, "at_most=0"], smallest=True)
    assert not again.partial


def _rows() -> CaseRows:
    rows = CaseRows(Config(arms=("dense", "local")), _STUDY, "x", [0])
    rows.trained = {
        "dense": [{"val": [40, 60], "test": [40, 50]}, {"val": [50, 60], "test": [50, 52]}],
        "local": [{"val": [59, 50], "test": [50, 49]}, {"val": [20, 30], "test": [50, 53]}],
    }
    rows.timed = {
        ("local", 100.0): {"step_s": [1, 2], "block": 10, "sent": [100, 200]},
        ("dense", 100.0): {"step_s": [2, 2], "block": 5, "sent": [5000, 5000, 5000]},
    }
    return rows


def test_an_accuracy_is_reached_in_an_epoch_that_comes_to_it_or_counts_whole() -> None:
    rows = _rows()
    steps = 320 / 32
    local, dense = rows.trained["local"], rows.trained["dense"]
    assert rows.reached(local, "", rows.timed["local", 100.0]) == [steps * 1, 2 * steps * 2]
    assert rows.reached(dense, "", rows.timed["dense", 100.0]) == [2 * steps * 2] * 2


def test_seeds_are_paired_and_bytes_are_those_of_a_step() -> None:
    figures = _rows().figures()
    assert figures["x_local_minus_dense_balanced"].value == pytest.approx(0)
    low, high = figures["x_local_minus_dense_balanced"].spread
    assert (low, high) == pytest.approx((-12.71, 12.71), abs=0.01)  # Student's t for one degree
    assert figures["x_bytes_less_than_dense"].value == pytest.approx((100 + 50) / 2)
    assert figures["x_local_over_dense_100mbit"].value == pytest.approx((4 * 1) ** 0.5)


def test_a_class_has_no_more_images_than_its_last_group_brings() -> None:
    records = [
        Record(f"{n}", f"{n}", "0", 9, 9, "ab"[n % 2], f"g{n // 4}", "train") for n in range(40)
    ]
    chosen = capped(records, 5)
    groups = {each.group for each in chosen}
    assert chosen == [each for each in records if each.group in groups]
    assert [sum(each.label == label for each in chosen) for label in "ab"] == [6, 6]


def test_the_first_arm_is_what_the_others_are_compared_with() -> None:
    with pytest.raises(UserError, match="begins with dense"):
        run_bench("local", sets=["arms=[local, dense]"])
