"""Every figure of an evaluation follows from predictions.csv: by skindx, and without it."""

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from independent_figures import Figure, Simulated, all_figures, changes_elsewhere
from typer.testing import CliRunner

from skindx.cli import app
from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.evaluation.elsewhere import Internal, compare_elsewhere
from skindx.evaluation.image_table import (
    TABLE,
    leaves,
    read_image_table,
    recompute,
    write_image_table,
)
from skindx.evaluation.score import measure

ABOUT = {"origin.seed", "draws", "level", "assisted.level"}
"""Numbers of metrics.json that describe the measurement."""
ABSENT = {
    "external",
    "seen",
    "contamination.same_bytes",
    "contamination.near_copies",
    "elsewhere",
}
"""What is said of images that were not scored, and of another evaluation."""
BIASED = "calibration_error"
"""Its interval is not centred on the figure, which noise makes greater."""


@pytest.fixture(scope="module")
def independent(evaluation: Path) -> dict[str, Any]:
    return dict(_flat(all_figures(evaluation)))


def _flat(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _flat(item, f"{place}.{key}" if place else str(key))
    elif isinstance(value, Figure):
        yield f"{place}.value", value.value
        yield f"{place}.low", value
        yield f"{place}.high", value
    else:
        yield place, value


def test_every_number_is_computed_without_skindx(
    evaluation: Path, independent: dict[str, Any]
) -> None:
    """A figure that is added to a report must be added to the independent computation as well."""
    printed = dict(leaves(json.loads((evaluation / "metrics.json").read_text())))
    assert set(printed) - set(independent) == ABOUT | ABSENT
    wrong = {
        place: (value, independent[place])
        for place, value in printed.items()
        if place in independent
        and not isinstance(independent[place], Figure | Simulated)
        and not _same(value, independent[place])
    }
    assert wrong == {}
    assert len(printed) > 1000


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None or math.isnan(other):
        return one is None and (other is None or math.isnan(other))
    return abs(one - float(other)) <= 1e-9


def test_intervals_are_those_of_resampled_groups(
    evaluation: Path, independent: dict[str, Any]
) -> None:
    """Where a sample says enough, the width is that of a bootstrap; else it is wider."""
    printed = dict(leaves(json.loads((evaluation / "metrics.json").read_text())))
    compared = 0
    for place, figure in independent.items():
        if not isinstance(figure, Figure) or not place.endswith(".low"):
            continue
        low, high = printed[place], printed[place.removesuffix("low") + "high"]
        if low is None or high is None:
            assert math.isnan(figure.value), place
            continue
        assert low < high, place
        if BIASED in place:
            assert low <= figure.value
            continue
        assert low <= figure.value <= high, place
        draws_D = figure.draws_D[np.isfinite(figure.draws_D)]
        ratio = (high - low) / (2 * 1.96 * draws_D.std() + 1e-9)
        skewed = ".roc." in place or ".triage." in place  # near the ends of a curve
        assert ratio > (0.5 if skewed else 0.6), (place, ratio)
        if 0.15 < figure.value < 0.85:
            compared += 1
            assert ratio < 2, (place, ratio)
    assert compared > 10


def test_skindx_computes_the_same_again(evaluation: Path) -> None:
    result = recompute(evaluation)
    assert result.differing == {}
    done = CliRunner().invoke(app, ["recompute", str(evaluation)])
    assert done.exit_code == 0
    assert f"all {result.figures} figures agree" in done.stdout
    records, predictions, answers = read_image_table(evaluation)
    assert {record.source[:7] for record in records} == {"=clinic"}
    assert (len(predictions), answers.members) == (240, ("alpha", "beta"))


def test_the_changes_of_an_external_evaluation_take_both_tables(
    evaluation: Path, tmp_path: Path
) -> None:
    """The second half of the images, without a class, stands for those of another place."""
    records, predictions, answers = read_image_table(evaluation)
    chosen = [i for i in range(120, 240) if records[i].label != "scc"]
    there = answers.some(np.array(chosen))
    records, predictions = [records[i] for i in chosen], [predictions[i] for i in chosen]
    measured = replace(
        measure(records, predictions, there, draws=20),
        elsewhere=compare_elsewhere(Internal(answers, {}), there, draws=20),
    )
    write_image_table(tmp_path, records, predictions, there)
    write_json(tmp_path / "metrics.json", {"origin": {}, **measured.to_dict()})
    assert recompute(tmp_path, internal=evaluation).differing == {}
    assert recompute(tmp_path).figures < recompute(tmp_path, internal=evaluation).figures
    printed = dict(leaves(json.loads((tmp_path / "metrics.json").read_text())["elsewhere"]))
    computed = dict(_flat(changes_elsewhere(evaluation, tmp_path)))
    bounds = {place for place in printed if place.endswith((".low", ".high"))}
    assert set(printed) - bounds == set(computed)
    wrong = {p: (printed[p], v) for p, v in computed.items() if not _same(printed[p], v)}
    assert wrong == {}


@pytest.mark.parametrize("side", ["metrics.json", TABLE])
def test_what_was_changed_by_hand_is_named(evaluation: Path, tmp_path: Path, side: str) -> None:
    for name in ("metrics.json", TABLE, "predictions.json"):
        (tmp_path / name).write_bytes((evaluation / name).read_bytes())
    if side == TABLE:
        with (tmp_path / TABLE).open(newline="") as file:
            rows = list(csv.reader(file))
        column = rows[0].index("label")
        rows[1][column] = "scc" if rows[1][column] == "nevus" else "nevus"
        with (tmp_path / TABLE).open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    else:
        metrics = json.loads((tmp_path / side).read_text())
        metrics["ensemble"]["top1"]["value"] += 1e-6
        metrics["of_a_newer_version"] = 3
        (tmp_path / side).write_text(json.dumps(metrics))
    done = CliRunner().invoke(app, ["recompute", str(tmp_path)])
    assert done.exit_code == 1
    assert "ensemble.top1.value: printed" in done.stdout
    assert ("of_a_newer_version: printed 3, recomputed None" in done.stdout) == (side != TABLE)


def test_a_folder_without_a_table_or_with_a_damaged_one_is_refused(
    evaluation: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"has no predictions\.csv.*skindx evaluate"):
        recompute(tmp_path)
    for name in ("metrics.json", TABLE, "predictions.json"):
        (tmp_path / name).write_bytes((evaluation / name).read_bytes())
    for damage in ("", "label,group\n", (tmp_path / TABLE).read_text().replace(",0.", ",x.", 1)):
        (tmp_path / TABLE).write_text(damage)
        with pytest.raises(
            UserError, match=r"predictions\.csv is damaged .*; run `skindx evaluate`"
        ):
            recompute(tmp_path)
