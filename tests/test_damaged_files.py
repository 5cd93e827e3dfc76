"""Every file that a user can give, damaged: read, or refused in one sentence.

SKINDX_MUTANTS=2000 tries so many of each; the suite tries a few.
"""

import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from skindx.api.answer_file import open_part
from skindx.casebook.casebook import Casebook
from skindx.casebook.key_file import KeyFile
from skindx.core.errors import UserError
from skindx.data.answer_log import AnswerLog
from skindx.data.blocklist import read_blocklist
from skindx.data.box import Box
from skindx.data.boxes.annotations import Annotation, read_annotations, write_annotations
from skindx.data.boxes.box_formats import BoxSource
from skindx.data.copies.verified import read_copies
from skindx.data.decisions import Flag, read_flags, write_flags
from skindx.data.embedding_files import (
    Embeddings,
    read_embedding_rows,
    read_embeddings,
    write_embeddings,
)
from skindx.data.ledger import read_ledger
from skindx.data.manifest import count_images, read_issues, read_manifest
from skindx.data.recipe import BuildSettings
from skindx.data.sources.files import FilesSource
from skindx.data.sources.huggingface import HuggingFaceColumns, from_shard
from skindx.data.splits.freeze import read_places
from skindx.data.splits.groups import GroupKeys, GroupSettings
from skindx.data.tables.reader import read_table
from skindx.diagnosis.case import Patient
from skindx.diagnosis.photo_list import ListedPhoto, list_photos
from skindx.evaluation.answers import read_predictions
from skindx.imaging.dicom_facts import read_key
from skindx.models.bounded_files import load_arrays
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.bundle_index import read_seen
from skindx.models.bundle.detach import attach, unpack
from skindx.models.combination import read_prevalence
from skindx.monitor.drift_detector import URGENT
from skindx.monitor.monitor_file import MonitorFile
from skindx.scan.compare.registration import read_scan
from skindx.scan.outputs.scan_files import renew_tables
from skindx.scan.outputs.scan_result import read_summary
from skindx.taxonomy import Taxonomy, load_taxonomy
from skindx.training.config.run import TrainSettings
from skindx.ui.http.users import add_user, read_users

FIXTURES = Path(__file__).parent / "fixtures" / "v0_2"
COUNT = int(os.environ.get("SKINDX_MUTANTS", "4"))
Read = Callable[[Path], Any]
Maker = Callable[[Path], None]


def _copy(*parts: str) -> Maker:
    """Return what copies a file of the fixtures, or a folder without its many small files."""

    def make(folder: Path) -> None:
        source = FIXTURES.joinpath(*parts)
        if source.is_dir():
            shutil.copytree(source, folder, dirs_exist_ok=True,
                            ignore=shutil.ignore_patterns("store"))  # fmt: skip
        else:
            shutil.copy(source, folder)

    return make


def _text(name: str, text: str) -> Maker:
    return lambda folder: (folder / name).write_text(text, encoding="utf-8") and None


def _table(name: str, **columns: list[Any]) -> Maker:
    return lambda folder: pq.write_table(pa.table(columns), folder / name)


def _annotations(folder: Path) -> None:
    box = Box(1.0, 2.0, 30.0, 40.0, drawn_by="ann")
    write_annotations(folder, [Annotation("a" * 64, "ann", "2026-01-01T00:00:00", (box,))])


def _flags(folder: Path) -> None:
    write_flags(folder, [Flag("a" * 64, "face", 0.5)], ["face"])


def _embeddings(folder: Path) -> None:
    vectors_ND = np.eye(3, 8, dtype=np.float32)
    write_embeddings(folder / "e.parquet", Embeddings(("a", "b", "c"), vectors_ND, "m"))


def _zip(folder: Path) -> None:
    with zipfile.ZipFile(folder / "b.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("bundle.json", "taxonomy.yaml", "MODEL_CARD.md"):
            archive.write(FIXTURES / "whole" / "bundle" / name, f"bundle/{name}")


def _hub(path: Path) -> object:
    return list(from_shard(path, "t", HuggingFaceColumns()))


def _lines(path: Path) -> object:
    columns = {"licence": "", "attribution": "", "group": "", "skin_type": ""}
    source = {"kind": "files", "path": str(path), "columns": columns}
    return list(read_table(path, FilesSource.parse(source).columns))


def _boxes(path: Path) -> object:
    return BoxSource(path=path).read()


def _bundle(path: Path) -> object:
    folder = path if path.is_dir() else path.parent
    return open_bundle(folder)


def _unpacked(path: Path) -> None:
    with TemporaryDirectory() as out:
        unpack(path, Path(out))


def _attached(path: Path) -> None:
    """Refuse an archive that lacks nothing, unless it is damaged before."""
    with TemporaryDirectory() as out, suppress(UserError):
        attach(path, Path(out) / "bundle")


def _groups(path: Path) -> object:
    table = {"path": str(path), "key_column": "key", "group_column": "group"}
    return GroupKeys(GroupSettings.parse({"tables": [table]}))


def _fiftyone(folder: Path) -> None:
    (folder / "data").mkdir()
    Image.new("RGB", (50, 40)).save(folder / "data" / "a.jpg")
    labels = {"a": [{"label": "lesion", "bounding_box": [0.1, 0.1, 0.5, 0.5]}]}
    (folder / "labels.json").write_text(json.dumps({"classes": ["lesion"], "labels": labels}))


def _yolo(folder: Path) -> None:
    for name in ("images", "labels"):
        (folder / name).mkdir()
    Image.new("RGB", (50, 40)).save(folder / "images" / "a.jpg")
    (folder / "labels" / "a.txt").write_text("0 0.5 0.5 0.2 0.3\n")
    (folder / "data.yaml").write_text("path: .\ntrain: images\nnames: {0: lesion}\n")


def _monitor(folder: Path) -> None:
    bundle = SimpleNamespace(spec=SimpleNamespace(name="b"), taxonomy=SimpleNamespace(keys=("n",)))
    numbers: Any = SimpleNamespace(bundle=bundle, streams=(URGENT,), reference=lambda: (None, ""))
    MonitorFile.create(folder / "m.db", numbers, "a" * 64)


def _book(path: Path) -> None:
    shutil.copy(FIXTURES / "cases.db.keys", path.with_name("cases.db.keys"))
    path.with_name("cases.db.keys").chmod(0o600)
    book = Casebook.open(path, create=False)
    try:
        book.all_cases()
    finally:
        book.engine.dispose()


def _array(folder: Path) -> None:
    np.save(folder / "e.npy", np.eye(2, 8, dtype=np.float32))
    (folder / "names.csv").write_text("sha256\na\nb\n")


def _rows(path: Path) -> object:
    names = path.with_name("names.csv")
    records: Any = [SimpleNamespace(sha256=one, path=one, source_url=one) for one in "ab"]
    return read_embedding_rows(path, names if names.exists() else None, records)


def _begun(folder: Path) -> None:
    _go_on(folder / "a.csv.part")


def _go_on(path: Path) -> None:
    with open_part(path, {"bundle": "b"}) as part:
        part.add([ListedPhoto("a", path, Patient())], [{"first": "x"}])


YAML = yaml.safe_dump({"name": "r", "sources": [{"kind": "folder", "path": "x"}], "seed": 3})
KEYS = load_taxonomy("skin10").keys
COCO = json.dumps({
    "images": [{"id": 1, "file_name": "a.jpg", "width": 50, "height": 40}],
    "categories": [{"id": 1, "name": "lesion"}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 10, 12],
                     "area": 120, "iscrowd": 0, "segmentation": [[1, 2, 9, 2, 9, 9]]}],
})  # fmt: skip
VOC = (
    "<annotation><filename>a.jpg</filename><size><width>50</width><height>40</height></size>"
    "<object><name>lesion</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax>"
    "</bndbox></object></annotation>"
)
CVAT = (
    '<annotations><image id="0" name="a.jpg" width="50" height="40"><box label="lesion" '
    'xtl="1" ytl="2" xbr="9" ybr="8"/></image></annotations>'
)
STUDIO = json.dumps([{"data": {"image": "a.jpg"}, "annotations": [{"result": [{
    "type": "rectanglelabels", "original_width": 50, "original_height": 40,
    "value": {"x": 1, "y": 2, "width": 20, "height": 30,
              "rectanglelabels": ["lesion"]}}]}]}])  # fmt: skip
TRAINING = "members:\n- {name: m, model: test_resnet}\nrecipe: {epochs: 2}\n"
CSV = "file,label,age,sex,licence\na.jpg,Nevus,62,female,CC0\nb.jpg,Melanoma,,,\n"
BLOCKED = json.dumps({"sha256": "a" * 64, "codes": {"dct": "0f"}, "urls": []})
DECISIONS = (
    "sha256,other_sha256,question,verdict,label,by,when,note,version\n"
    f"{'a' * 64},,image,keep,,x,2026-01-01T00:00:00+00:00,,1\n"
)

READERS: dict[str, tuple[Maker, str, Read]] = {
    "manifest": (_copy("dataset"), "manifest.parquet",
                 lambda path: count_images(read_manifest(path.parent))),
    "issues": (_copy("dataset"), "issues.parquet", lambda path: read_issues(path.parent)),
    "copies": (_copy("dataset"), "copies.parquet", read_copies),
    "splits": (_copy("dataset"), "splits.csv", read_places),
    "recipe of a dataset": (_copy("dataset"), "recipe.yaml", BuildSettings.load),
    "taxonomy": (_copy("dataset"), "taxonomy.yaml", Taxonomy.load),
    "predictions": (_copy("whole", "evaluation"), "predictions.parquet",
                    lambda path: read_predictions(path.parent)),
    "bundle": (_copy("whole", "bundle"), "bundle.json", _bundle),
    "seen images": (_copy("whole", "bundle"), "seen.parquet", read_seen),
    "tensors": (_copy("whole", "bundle", "ood", "check.safetensors"),
                "check.safetensors", load_arrays),
    "zip file of a bundle": (_zip, "b.zip", _unpacked),
    "detached bundle": (_zip, "b.zip", _attached),
    "training": (_text("t.yaml", TRAINING), "t.yaml", TrainSettings.load),
    "scan": (_copy("scan"), "lesions.parquet", lambda path: renew_tables(path.parent)),
    "scan's summary": (_copy("scan"), "scan.json", lambda path: renew_tables(path.parent)),
    "annotations": (_annotations, "annotations.parquet",
                    lambda path: read_annotations(path.parent)),
    "flags": (_flags, "flags.parquet", lambda path: read_flags(path.parent)),
    "embeddings": (_embeddings, "e.parquet", read_embeddings),
    "recipe": (_text("r.yaml", YAML), "r.yaml", BuildSettings.load),
    "prevalence": (_text("p.yaml", yaml.safe_dump(dict.fromkeys(KEYS, 1 / len(KEYS)))), "p.yaml",
                   lambda path: read_prevalence(path, load_taxonomy("skin10"))),
    "COCO": (_text("c.json", COCO), "c.json", _boxes),
    "VOC": (_text("a.xml", VOC), "a.xml", _boxes),
    "CVAT": (_text("annotations.xml", CVAT), "annotations.xml", _boxes),
    "Label Studio": (_text("tasks.json", STUDIO), "tasks.json", _boxes),
    "CSV": (_text("t.csv", CSV), "t.csv", _lines),
    "JSON lines": (_text("t.jsonl", '{"file": "a.jpg", "label": "Nevus"}\n' * 3), "t.jsonl",
                   _lines),
    "Parquet of files": (_table("t.parquet", file=["a.jpg", "b"], label=["Nevus", "x"]),
                         "t.parquet", _lines),
    "table of photos": (_text("t.csv", CSV), "t.csv", list_photos),
    "Parquet of photos": (_table("t.parquet", file=["a.jpg"], age=[62.0], sex=["F"]), "t.parquet",
                          list_photos),
    "shard of the hub": (_table("t.parquet", image=[b"abc", b"x"], label=["a", "b"]), "t.parquet",
                         _hub),
    "decisions": (_text("decisions.csv", DECISIONS), "decisions.csv",
                  lambda path: AnswerLog(path.parent)),
    "block list": (_text("b.txt", BLOCKED), "b.txt",
                   read_blocklist),
    "ledger": (_text("ledger.jsonl", '{"url": "a", "label": "b", "status": "stored"}\n'),
               "ledger.jsonl", lambda path: read_ledger(path.parent)),
    "users": (lambda folder: add_user(folder / "users.json", "ann", "long enough"),
              "users.json", read_users),
    "table of groups": (_text("g.csv", "key,group\na,1\nb,2\n"), "g.csv", _groups),
    "FiftyOne": (_fiftyone, "labels.json", lambda path: _boxes(path.parent)),
    "YOLO": (_yolo, "data.yaml", lambda path: _boxes(path.parent)),
    "YOLO's labels": (_yolo, "labels/a.txt", lambda path: _boxes(path.parents[1])),
    "summary of a scan": (_copy("scan"), "scan.json", lambda path: read_summary(path.parent)),
    "scan to compare": (_copy("scan"), "lesions.parquet", lambda path: read_scan(path.parent)),
    "monitor": (_monitor, "m.db", lambda path: MonitorFile(path).read()),
    "key file": (_copy("cases.db.keys"), "cases.db.keys", lambda path: KeyFile(path).read()),
    "case book": (_copy("cases.db"), "cases.db", _book),
    "DICOM key": (lambda folder: read_key(folder / "k", create=True) and None, "k", read_key),
    "Parquet of embeddings": (_embeddings, "e.parquet", _rows),
    "array of embeddings": (_array, "e.npy", _rows),
    "begun answers": (_begun, "a.csv.part", _go_on),

}  # fmt: skip


def bent(content: bytes, chance: random.Random) -> bytes:
    """Return a file with bits flipped, cut, grown, or a piece of it elsewhere."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed)) if changed else 0
        match chance.randrange(6):
            case 0 | 1 if changed:
                changed[at] ^= 1 << chance.randrange(8)
            case 2 if changed:
                changed[at] = chance.choice(b"\x00\xff\x80\"'{}[],:\n-0<&")
            case 3:
                del changed[at : at + chance.randint(1, 1 + len(changed) // 3)]
            case 4:
                words = (b"NaN", b"1e999", b"null", b"\xff\xfe", b"\x00", b"9" * 40, b"[[", b"true")
                changed[at:at] = chance.choice(words)
            case _:
                start = chance.randrange(len(changed)) if changed else 0
                changed[at:at] = changed[start : start + chance.randint(1, 40)]
    return bytes(changed)


def mutants(content: bytes, name: str, deep: int) -> Iterator[bytes]:
    chance = random.Random(name)
    yield b""
    yield b"\xff" * 40
    yield content[:-1]
    yield b"[" * deep + b"\n"
    yield b'{"a":' * (deep // 2) + b"\n"
    for _ in range(COUNT):
        yield bent(content, chance)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused(name: str, tmp_path: Path) -> None:
    make, file, read = READERS[name]
    folder = tmp_path / "given"
    folder.mkdir()
    make(folder)
    place = folder / file
    place.chmod(0o600)
    content = place.read_bytes()
    read(place)
    failed = []
    # A reader of YAML is Python's, which has a limit of its own, and takes a second for more.
    deep = 10_000 if file.endswith((".yaml", ".yml")) else 100_000
    for number, mutant in enumerate(mutants(content, name, deep)):
        place.write_bytes(mutant)
        try:
            read(place)
        except UserError as error:
            if not str(error).strip():
                failed.append((number, "UserError", ""))
        except Exception as error:
            failed.append((number, type(error).__name__, str(error)[:100]))
    assert failed == []


def test_a_manifest_that_no_build_wrote_is_one_sentence(tmp_path: Path) -> None:
    good = read_manifest(FIXTURES / "dataset")[:2]
    box = {"x1": 1.0, "y1": 1.0, "x2": 9.0, "y2": 9.0, "label": "lesion"}
    shapes = {
        "has .* in two rows": {"sha256": [good[0].sha256] * 2},
        "boxes.x1 has a number that is not finite": {"boxes": [[{**box, "x1": float("nan")}], []]},
        "box needs x1 < x2": {"boxes": [[{**box, "x1": 99.0}], []]},
        "label has values of type .*, not text": {"label": [1, 2]},
        "width has values of type .*, not whole numbers": {"width": ["a", "b"]},
        "group has rows without a value": {"group": [None, "b"]},
        "skin type 9": {"skin_type": [9, None]},
        "-5 x": {"width": [-5, 5]},
    }
    for said, columns in shapes.items():
        plain = {
            name: [getattr(row, name) for row in good]
            for name in ("path", "sha256", "perceptual_hash", "width", "height", "label", "group",
                         "split")
        }  # fmt: skip
        pq.write_table(pa.table({**plain, **columns}), tmp_path / "manifest.parquet")
        with pytest.raises(UserError, match=said):
            read_manifest(tmp_path)
    text = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"),
                                       pa.py_buffer(b"\xff\xfe"))  # fmt: skip
    pq.write_table(pa.table({**plain, "label": text}), tmp_path / "manifest.parquet")
    with pytest.raises(UserError, match="cannot be read"):
        read_manifest(tmp_path)


def test_what_a_zip_may_raise_is_one_sentence(tmp_path: Path) -> None:
    _zip(tmp_path)
    content = (tmp_path / "b.zip").read_bytes()
    central, name = content.rindex(b"PK\x01\x02"), content.rindex(b"taxonomy")
    for at, value in (
        (central + 8, 0x01), (central + 9, 0x08), (central + 10, 12), (central + 10, 14),
        (central + 10, 99), (central + 20, 0xFF), (central + 43, 0x7F), (name, 0xFF),
        (content.index(b"bundle.json") + 60, 0xFF),
    ):  # fmt: skip
        bent_zip = bytearray(content)
        bent_zip[at] = value
        (tmp_path / "b.zip").write_bytes(bytes(bent_zip))
        with suppress(UserError):
            _unpacked(tmp_path / "b.zip")
