"""The evaluation of a release: every figure follows from rows that are bound to the bundle."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from skindx.cli import app
from skindx.core.atomic_files import sha256_file, write_json
from skindx.core.errors import UserError
from skindx.data.layout import stored_file
from skindx.data.manifest import read_manifest, write_manifest
from skindx.evaluation.release import (
    RELEASE,
    ROWS,
    _raw,
    evaluate_release,
    read_release,
    recompute_release,
    release_figures,
)
from skindx.models.class_calibration import ClassCalibration
from skindx.models.combination import apply_temperature, combine
from skindx.models.ensemble import Ensemble, Prediction

OLDER = Path(__file__).parents[1] / "fixtures" / "v0_2"
DATA = OLDER / "dataset"


def noise(folder: Path) -> Path:
    """Return a dataset of other images with the same labels, and of one test image encoded anew."""
    shutil.copytree(DATA, folder)
    rng, records = np.random.default_rng(0), []
    for record in read_manifest(folder)[::3]:
        file = stored_file(folder, record.path)
        Image.fromarray(rng.integers(0, 256, (48, 48, 3), dtype=np.uint8)).save(file, format="PNG")
        records.append(replace(record, sha256=sha256_file(file), group=f"elsewhere-{record.group}"))
    tested = next(record for record in read_manifest(DATA) if record.split == "test")
    file = stored_file(folder, tested.path)
    Image.open(stored_file(DATA, tested.path)).save(file, format="PNG")
    records = [record for record in records if record.path != tested.path]
    records.append(replace(tested, sha256=sha256_file(file), group="copy"))
    write_manifest(folder, records)
    return folder


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    bundle = shutil.copytree(OLDER / "whole" / "bundle", folder / "bundle")
    before = sha256_file(bundle / "bundle.json")
    named = ["--also", f"clinic={noise(folder / 'clinic')}"]
    result = CliRunner().invoke(app, ["evaluate", str(bundle), str(DATA), "--release", *named])
    assert result.exit_code == 0, result.output
    assert sha256_file(bundle / "bundle.json") == before
    assert f"digest {before}, unchanged" in result.output.replace("\n", "")
    return folder / "release"


@pytest.fixture
def copied(release: Path, tmp_path: Path) -> Path:
    return shutil.copytree(release, tmp_path / "release")


def change_rows(folder: Path, change: Any, metadata: dict[bytes, bytes] | None = None) -> None:
    """Change the rows, and name their new hash, as someone would who means it."""
    table = pq.read_table(folder / ROWS)
    changed = change(table).replace_schema_metadata(metadata or table.schema.metadata)
    pq.write_table(changed, folder / ROWS)
    said = json.loads((folder / RELEASE).read_text())
    write_json(folder / RELEASE, said | {"rows_sha256": sha256_file(folder / ROWS)})


def with_label(table: pa.Table, row: int, label: str) -> pa.Table:
    labels = table["label"].to_pylist()
    labels[row] = label
    return table.set_column(table.schema.get_field_index("label"), "label", [labels])


def test_a_row_for_each_image_of_val_calibration_test_and_elsewhere(release: Path) -> None:
    table = pq.read_table(release / ROWS)
    counts = {row["values"]: row["counts"] for row in pc.value_counts(table["part"]).to_pylist()}
    splits = [record.split for record in read_manifest(DATA)]
    said = json.loads((release / RELEASE).read_text())
    elsewhere = read_manifest(release.parent / "clinic")
    assert said["parts"]["clinic"]["copies_of_test"] == 1
    assert counts.pop("clinic") == len(elsewhere) - 1
    assert "copy" not in table["group"].to_pylist()
    assert counts == {name: splits.count(name) for name in ("val", "calibration", "test")}
    assert said["origin"]["bundle_digest"] == sha256_file(release.parent / "bundle/bundle.json")
    assert "--release --also clinic=" in said["command"]
    assert {"ood_p_value", "next_step", "abstained", "set", "crop"} <= set(table.column_names)


def test_figures_are_those_of_the_rows(release: Path) -> None:
    result = recompute_release(release)
    assert result.figures > 500
    assert not result.differing
    figures = release_figures(release)
    assert set(figures) == {"metrics.json", "external-clinic.json"}
    assert figures["external-clinic.json"]["elsewhere"]["internal_images"]
    assert CliRunner().invoke(app, ["recompute", str(release)]).exit_code == 0


def test_another_label_is_another_figure(copied: Path) -> None:
    table = pq.read_table(copied / ROWS)
    row = table["part"].to_pylist().index("test")
    other = next(v for v in table["label"].to_pylist() if v != table["label"][row].as_py())
    change_rows(copied, lambda rows: with_label(rows, row, other))
    differing = recompute_release(copied).differing
    assert "metrics.json: ensemble.log_loss.value" in differing
    result = CliRunner().invoke(app, ["recompute", str(copied)])
    assert result.exit_code == 1
    assert "ensemble.log_loss.value" in result.output


def test_changed_rows_are_refused(copied: Path) -> None:
    table = pq.read_table(copied / ROWS)
    pq.write_table(with_label(table, 0, table["label"][0].as_py()), copied / ROWS)
    with pytest.raises(UserError, match="was changed after the evaluation"):
        read_release(copied)


def test_rows_of_another_bundle_are_refused(copied: Path) -> None:
    change_rows(copied, lambda table: table, {b"skindx-bundle": b"ab" * 32})
    with pytest.raises(UserError, match="to the bundle abababababababab"):
        read_release(copied)


def test_a_class_that_the_bundle_lacks_is_named(copied: Path) -> None:
    change_rows(copied, lambda table: with_label(table, 3, "Chickenpox"))
    with pytest.raises(UserError, match="'Chickenpox', which the bundle does not have"):
        read_release(copied)


@pytest.mark.parametrize("name", ["test", "a b", "", "../x"])
def test_an_external_dataset_has_a_name_of_its_own(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="is not a valid name"):
        evaluate_release(OLDER / "whole/bundle", DATA, tmp_path / "out", also={name: DATA})
    assert not (tmp_path / "out").exists()


def test_copies_of_test_images_are_no_external_dataset(tmp_path: Path) -> None:
    records = [record for record in read_manifest(DATA) if record.split == "test"]
    write_manifest(shutil.copytree(DATA, tmp_path / "copies"), records)
    with pytest.raises(UserError, match="is a copy of a test image"):
        evaluate_release(
            OLDER / "whole/bundle", DATA, tmp_path / "out", also={"copies": tmp_path / "copies"}
        )
    assert not (tmp_path / "out").exists()


def test_what_is_no_release_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not the evaluation of a release"):
        read_release(tmp_path)


def test_rows_hold_what_members_said_before_any_calibration() -> None:
    """Undoing temperatures, slope and biases gives the networks' own log-probabilities again."""
    rng = np.random.default_rng(1)
    own_MNC = np.log(rng.dirichlet(np.ones(3), (2, 5)))
    temperatures, ensemble_temperature = (0.6, 1.4), 0.8
    calibration = ClassCalibration(slope=1.2, biases=(0.5, -0.2, -0.3))
    members = tuple(
        SimpleNamespace(name=name, temperature=t)
        for name, t in zip("ab", temperatures, strict=True)
    )
    ensemble: Any = Ensemble(members, ensemble_temperature, class_calibration=calibration)  # type: ignore[arg-type]
    softened_MNC = np.stack(
        [apply_temperature(log_NC, t) for log_NC, t in zip(own_MNC, temperatures, strict=True)]
    )
    shown_NC, shown_MNC = ensemble._combined(softened_MNC)
    predictions = [Prediction(shown_NC[n], shown_MNC[:, n]) for n in range(5)]
    columns = _raw(ensemble, predictions, ["x", "y", "z"])
    for m, name in enumerate("ab"):
        logits_NC = np.column_stack([columns[f"logit_{name}_{key}"] for key in "xyz"])
        np.testing.assert_allclose(logits_NC, own_MNC[m], atol=1e-9)
    pooled_NC = np.exp(np.column_stack([columns[f"pooled_{key}"] for key in "xyz"]))
    np.testing.assert_allclose(pooled_NC, combine(softened_MNC, 1.0), atol=1e-9)
    crop = replace(predictions[0], whole_C=shown_NC[0])
    assert np.isnan(_raw(ensemble, [crop], ["x", "y", "z"])["logit_a_x"]).all()
