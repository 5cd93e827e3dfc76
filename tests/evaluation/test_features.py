"""Embeddings of a tower that is elsewhere: from a file to heads, a bundle and a report."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_engine import Alone, HeadsEngine
from tower_folders import timm_folder
from typer.testing import CliRunner

from skindx.core.errors import UserError
from skindx.data.embedding_files import read_embedding_rows
from skindx.data.layout import store_bytes
from skindx.data.manifest import Record, Split, write_manifest
from skindx.diagnosis.predictor import Predictor
from skindx.evaluation.features import FeaturesResult, evaluate_embeddings, find_tower, fit_heads
from skindx.imaging.decode import decode
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.bundle_index import CLASS_CALIBRATION
from skindx.models.classifier.preprocess import framed_square
from skindx.taxonomy import SkinClass, Taxonomy
from skindx.training import state
from skindx.training.deepspeed import ranks

pytestmark = pytest.mark.usefixtures("without_fingerprints")
CLASSES = ("mole", "melanoma", "wart")
SOLVED = ("linear", "knn", "prototypes")
D = 12


@dataclass
class Embedded:
    """A dataset of noise, and embeddings in which its classes lie apart."""

    folder: Path
    records: list[Record]
    rows_PD: Any

    @property
    def names(self) -> list[str]:
        return [record.source_url for record in self.records]

    def save(self, folder: Path, order: Any = None, **changed: Any) -> tuple[Path, Path]:
        """Write .npy and names in another order."""
        rows, names = changed.get("rows", self.rows_PD), changed.get("names", self.names)
        order = np.arange(len(names)) if order is None else order
        np.save(folder / "e.npy", rows[order] if len(rows) == len(names) else rows)
        (folder / "e.txt").write_text("".join(f"{names[n]}\n" for n in order))
        return folder / "e.npy", folder / "e.txt"


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Embedded:
    folder = tmp_path_factory.mktemp("embedded") / "data"
    rng = np.random.default_rng(3)
    splits: list[Split] = [*["train"] * 5, "val", "val", "calibration", "calibration", "test"]
    splits += ["calibration", "test"]
    records, rows = [], []
    for number in range(180):
        pixels = rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)
        coded = cv2.imencode(".jpg", cv2.resize(pixels, (96, 80)))[1].tobytes()
        sha256, path = store_bytes(folder, coded, ".jpg")
        label = CLASSES[number % 3]
        split = splits[number // 3 % len(splits)]
        url = f"{label}/IMG_{number}.jpg"
        records.append(Record(path, sha256, "0" * 16, 96, 80, label, sha256, split, source_url=url))
        rows.append(rng.normal(size=D) + 1.2 * np.eye(D)[number % 3])
    urgencies = ("routine", "urgent", "routine")
    classes = tuple(
        SkinClass(key=key, name=key, urgency=urgency)
        for key, urgency in zip(CLASSES, urgencies, strict=True)
    )
    Taxonomy(name="three", title="Three", classes=classes).save(folder / "taxonomy.yaml")
    write_manifest(folder, records)
    return Embedded(folder, records, np.array(rows, np.float32))


@pytest.fixture(scope="module")
def made(
    embedded: Embedded, without_fingerprints: None, tmp_path_factory: pytest.TempPathFactory
) -> FeaturesResult:
    folder = tmp_path_factory.mktemp("made")
    file, names = embedded.save(folder)
    return evaluate_embeddings(
        file, embedded.folder, folder / "out", names=names, heads=SOLVED, made_by="T", draws=20
    )


def test_a_file_becomes_a_report_with_every_part(made: FeaturesResult) -> None:
    spec = open_bundle(made.bundle.path).spec
    assert spec.conformal
    assert spec.urgent_risk
    assert spec.ood
    assert spec.gallery
    metrics = json.loads((made.folder / "metrics.json").read_text())
    assert metrics["ensemble"]["balanced_accuracy"]["value"] > 0.6
    assert all(metrics[part] for part in ("sets", "urgent_risk", "ood"))
    assert open_bundle(made.bundle.path).metrics() == metrics
    assert "<html" in (made.folder / "report.html").read_text()
    heads = json.loads((made.folder.parent / "heads.json").read_text())
    assert {head["name"] for head in heads["heads"]} == set(SOLVED)
    losses = [head["loss"] for head in heads["heads"]]
    assert losses == sorted(losses)
    assert heads["chosen"] == heads["heads"][0]["name"] == spec.members[0].name
    assert spec.provenance["embeddings_sha256"] == heads["embeddings_sha256"]
    words = spec.provenance[CLASS_CALIBRATION]
    assert ("so they are kept" in words) == (spec.class_calibration is not None)
    assert f"- calibration by class: {words}" in (made.bundle.path / "MODEL_CARD.md").read_text()


def test_a_bundle_without_its_tower_says_what_it_lacks(made: FeaturesResult) -> None:
    with pytest.raises(UserError, match=r"lacks the tower below its heads \(T, 12 numbers"):
        Predictor.load(made.bundle.path)
    card = (made.bundle.path / "MODEL_CARD.md").read_text()
    assert "lacks the tower below its heads (T, 12 numbers" in card


def test_the_report_is_of_the_embeddings_that_stand_in_the_file(
    embedded: Embedded, made: FeaturesResult
) -> None:
    """The chosen head by hand: softmax of W x + b, over the temperature."""
    from safetensors.numpy import load_file

    stored = load_file(made.bundle.path / "members/linear/model.safetensors")
    logits = embedded.rows_PD @ stored["head.weight"].T + stored["head.bias"]
    logits /= made.bundle.spec.members[0].temperature
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    table = pq.read_table(made.folder / "predictions.parquet").to_pylist()
    tests = [n for n, record in enumerate(embedded.records) if record.split == "test"]
    for n, row in zip(tests, table, strict=True):
        assert row["sha256"] == embedded.records[n].sha256
        assert _answer(row) == pytest.approx(expected[n], abs=1e-5)


def _answer(row: dict[str, Any]) -> list[float]:
    return [row[f"probability_{key}"] for key in CLASSES]


def test_neither_order_nor_test_images_change_the_bundle(
    embedded: Embedded, made: FeaturesResult, tmp_path: Path
) -> None:
    other = embedded.rows_PD.copy()
    test_P = np.array([record.split == "test" for record in embedded.records])
    other[test_P] = other[test_P][::-1] * 3
    order = np.random.default_rng(0).permutation(len(other))
    rows = read_embedding_rows(*embedded.save(tmp_path, order, rows=other), embedded.records)
    heads = fit_heads(SOLVED, rows, embedded.records, CLASSES)
    for again, first in zip(heads, made.heads, strict=True):
        assert again.figures() == first.figures()
        assert all(
            torch.equal(again.finished.state[name], tensor)
            for name, tensor in first.finished.state.items()
        )


@given(order=st.permutations(range(8)), how=st.sampled_from(["sha256", "url", "base", "stem"]))
def test_rows_are_joined_by_name_whatever_their_order(order: list[int], how: str) -> None:
    import tempfile

    records = [
        Record(f"store/{n}.jpg", f"{n:064x}", "", 9, 9, "a", "g", "train", source_url=f"x/I{n}.png")
        for n in range(8)
    ]
    named = {
        "sha256": [record.sha256 for record in records],
        "url": [record.source_url for record in records],
        "base": [f"/home/me/I{n}.png" for n in range(8)],
        "stem": [f"I{n}.jpg" for n in range(8)],
    }[how]
    with tempfile.TemporaryDirectory() as folder:
        small = Embedded(Path(folder), records, np.arange(16.0).reshape(8, 2))
        rows = read_embedding_rows(*small.save(Path(folder), order, names=named), records)
    assert (rows.embeddings_PD == small.rows_PD).all()
    assert rows.embedding(records[3].sha256).tolist() == [6, 7]


@pytest.mark.parametrize("vectors", ["list", "fixed", "double"])
def test_a_parquet_table_gives_the_same_rows(
    vectors: str, embedded: Embedded, tmp_path: Path
) -> None:
    kind = {"list": pa.list_(pa.float32()), "fixed": pa.list_(pa.float32(), D)}.get(
        vectors, pa.large_list(pa.float64())
    )
    extra = np.zeros((1, D))
    table = pa.table(
        {
            "sha256": [*(record.sha256 for record in reversed(embedded.records)), "of none"],
            "embedding": pa.array([*embedded.rows_PD[::-1], *extra], kind),
        }
    )
    pq.write_table(table, tmp_path / "e.parquet")
    rows = read_embedding_rows(tmp_path / "e.parquet", None, embedded.records)
    assert (rows.embeddings_PD == embedded.rows_PD).all()
    assert rows.unused == 1


class _Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


def _spoilt(how: str, embedded: Embedded, folder: Path) -> tuple[Path, Path | None]:
    rows, names = embedded.rows_PD, embedded.names
    if how == "object":
        np.save(folder / "e.npy", np.array([_Trap(folder / "trap")], object), allow_pickle=True)
        return folder / "e.npy", embedded.save(folder.parent)[1]
    if how == "nan":
        rows = rows.copy()
        rows[7, 2] = np.nan
    if how == "huge":
        rows = rows.astype(np.float64)
        rows[7, 2] = 1e300
    whole = embedded.rows_PD.astype(np.int64)
    changed = {
        "whole": whole, "line": rows[:, 0], "cube": rows[:, :, None], "short": rows[:-3],
        "long": np.concatenate([rows, rows[:2]]), "empty": rows[:, :0],
    }  # fmt: skip
    if how in ("twice", "absent"):
        names = [*names[:-1], names[0] if how == "twice" else "none.jpg"]
    file, text = embedded.save(folder, rows=changed.get(how, rows), names=names)
    if how == "cut":
        file.write_bytes(file.read_bytes()[:-40])
    if how == "unnamed":
        return file, None
    if how == "suffix":
        return file.rename(folder / "e.pkl"), text
    return file, text


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("nan", r"has invalid numbers .* in 1 row, first in that of IMG_7.jpg"),
        ("huge", r"infinite or too large for float32\) in 1 row"),
        ("object", "is not a NumPy array of numbers"),
        ("cut", "is not a NumPy array of numbers"),
        ("whole", "has values of type int64 in 2 dimensions; save floating-point numbers"),
        ("line", "float32 in 1 dimensions"),
        ("cube", "float32 in 3 dimensions"),
        ("empty", "180 rows of 0 numbers"),
        ("short", r"has 177 rows, but .* has 180"),
        ("long", r"has 182 rows, but .* has 180"),
        ("twice", "rows 1 and 180 of .* are of the same image, IMG_0.jpg"),
        (
            "absent",
            r"has no row for 1 of the 180 images of the dataset \(1 in test\), such as",
        ),
        ("unnamed", "does not name the image of each row; add --files"),
        ("suffix", r"is neither a .npy nor a .parquet file"),
    ],
)
def test_a_bad_array_is_refused_in_a_sentence(
    how: str, words: str, embedded: Embedded, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    file, names = _spoilt(how, embedded, tmp_path / "in")
    with pytest.raises(UserError, match=words) as caught:
        evaluate_embeddings(file, embedded.folder, tmp_path / "out", names=names, heads=SOLVED)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "in/trap").exists()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"file": ["a"]}, r"and a column embedding or vector, but has the"),
        ({"embedding": [[1.0]]}, "needs a column sha256 or file"),
        ({"file": ["a"], "embedding": [["x"]]}, "save floating-point numbers"),
        ({"file": ["a", "b"], "embedding": [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0]]}, "with one model"),
        ({"file": ["a", "b"], "embedding": [[1.0], None]}, "has 0 numbers"),
        (None, "is not a complete Parquet file"),
    ],
)
def test_a_bad_table_is_refused_in_a_sentence(
    columns: dict[str, Any] | None, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "e.parquet"
    if columns is None:
        file.write_bytes(b"PAR1 no table PAR1")
    else:
        pq.write_table(pa.table(columns), file)
    records = [Record("s/a", "0" * 64, "", 9, 9, "x", "g", "train", source_url="a")]
    records += [Record("s/b", "1" * 64, "", 9, 9, "x", "g", "train", source_url="b")]
    with pytest.raises(UserError, match=words):
        read_embedding_rows(file, None, records[: len((columns or {}).get("file", ["a"]))])


def test_names_that_two_images_share_join_none(embedded: Embedded, tmp_path: Path) -> None:
    records = [
        Record(f"s/{n}", f"{n:064x}", "", 9, 9, "x", "g", "train", source_url=f"{folder}/1.jpg")
        for n, folder in enumerate("ab")
    ]
    small = Embedded(tmp_path, records, np.eye(2))
    with pytest.raises(UserError, match="has no row for 2 of the 2 images"):
        read_embedding_rows(*small.save(tmp_path, names=["1.jpg", "2.jpg"]), records)
    rows = read_embedding_rows(*small.save(tmp_path, names=["b/1.jpg", "a/1.jpg"]), records)
    assert (rows.embeddings_PD == np.eye(2)[::-1]).all()


def test_the_names_may_be_a_csv_column(embedded: Embedded, tmp_path: Path) -> None:
    file, _ = embedded.save(tmp_path)
    table = tmp_path / "names.csv"
    table.write_text("n,file\n" + "".join(f"1,{name}\n" for name in embedded.names))
    assert read_embedding_rows(file, table, embedded.records).unused == 0
    table.write_text("n,name\n1,x\n")
    with pytest.raises(UserError, match=r"needs a column sha256 or file or file_name"):
        read_embedding_rows(file, table, embedded.records)


def test_a_bundle_without_tower_is_evaluated_on_embeddings(
    embedded: Embedded, made: FeaturesResult, tmp_path: Path
) -> None:
    file, names = embedded.save(tmp_path)
    out = tmp_path / "out"
    digest = open_bundle(made.bundle.path).digest
    again = evaluate_embeddings(
        file, embedded.folder, out, names=names, bundle=made.bundle.path, draws=20
    )
    assert again.evaluation.ensemble == made.evaluation.ensemble
    assert sorted(entry.name for entry in out.iterdir()) == ["evaluation"]
    assert open_bundle(made.bundle.path).digest == digest
    np.save(file, embedded.rows_PD[:, :5])
    with pytest.raises(UserError, match="does not fit embeddings of 5 numbers"):
        evaluate_embeddings(file, embedded.folder, out, names=names, bundle=made.bundle.path)


def test_a_head_by_steps_is_fitted_on_the_same_rows(
    embedded: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "Engine", HeadsEngine)
    monkeypatch.setattr(ranks, "join_nobody", lambda settings: Alone())
    rows = read_embedding_rows(*embedded.save(tmp_path), embedded.records)
    (head,) = fit_heads(["mlp"], rows, embedded.records, CLASSES)
    assert head.balanced.value > 0.5
    assert set(head.finished.state) == {
        f"head.fc{number}.{part}" for number in (1, 2) for part in ("weight", "bias")
    }


def test_with_its_tower_the_same_file_is_a_bundle_that_diagnoses(
    embedded: Embedded, tmp_path: Path
) -> None:
    timm_folder(tmp_path / "tower", "test_resnet", input_size=[3, 64, 64])
    name = f"local-dir:{tmp_path / 'tower'}"
    tower = find_tower(name)
    images = [decode((embedded.folder / record.path).read_bytes()) for record in embedded.records]
    squares = np.stack([framed_square(image, tower.network.preprocess) for image in images])
    with torch.inference_mode():
        classifier = tower.trunk.classifier
        map_ = classifier.forward_features(torch.from_numpy(squares))
        pooled = classifier.forward_pooled(map_).numpy()
    file, names = embedded.save(tmp_path, rows=pooled)
    result = evaluate_embeddings(
        file, embedded.folder, tmp_path / "out", names=names, heads=["knn"], tower=name, draws=20
    )
    predictor = Predictor.load(result.bundle.path)
    tests = [n for n, record in enumerate(embedded.records) if record.split == "test"]
    served = predictor.predict([images[n] for n in tests])
    table = pq.read_table(result.folder / "predictions.parquet").to_pylist()
    for prediction, row in zip(served, table, strict=True):
        assert prediction.probabilities_C == pytest.approx(_answer(row), abs=2e-3)
    assert json.loads((tmp_path / "out/heads.json").read_text())["tower_cosine"] > 0.999
    again = find_tower(str(result.bundle.path))  # the bundle itself is where the tower is
    assert again.trunk.key == tower.trunk.key
    file, names = embedded.save(tmp_path, rows=np.roll(pooled, 1, axis=0))
    with pytest.raises(UserError, match=r"computes other embeddings of these images .*cosine"):
        evaluate_embeddings(
            file, embedded.folder, tmp_path / "out2", names=names, heads=["knn"], tower=name
        )
    file, names = embedded.save(tmp_path)
    with pytest.raises(UserError, match=r"numbers for each image, but these embeddings have 12"):
        evaluate_embeddings(file, embedded.folder, tmp_path / "out2", names=names, tower=name)
    assert not (tmp_path / "out2").exists()


def test_what_does_not_go_together_is_refused(embedded: Embedded, tmp_path: Path) -> None:
    file, names = embedded.save(tmp_path)
    with pytest.raises(UserError, match="there is no head 'tree'; choose --head from linear, mlp"):
        evaluate_embeddings(file, embedded.folder, tmp_path / "o", names=names, heads=["tree"])
    with pytest.raises(UserError, match="do not work with --bundle"):
        evaluate_embeddings(file, embedded.folder, tmp_path / "o", bundle=tmp_path, made_by="x")
    with pytest.raises(UserError, match="there is no tower 'vit'; give --tower a folder"):
        evaluate_embeddings(file, embedded.folder, tmp_path / "o", names=names, tower="vit")


def test_the_verb_says_where_things_are(embedded: Embedded, tmp_path: Path) -> None:
    from skindx.cli import app

    file, _ = embedded.save(tmp_path)
    done = CliRunner().invoke(
        app, ["features", "evaluate", str(file), str(embedded.folder), "--out", str(tmp_path / "o")]
    )
    assert isinstance(done.exception, UserError)
    assert "add --files NAMES.txt" in str(done.exception)
