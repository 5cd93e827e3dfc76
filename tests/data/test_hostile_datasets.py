"""A dataset that comes from anyone: what its tables and links name stays inside its folders."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest
from paint_images import encode, paint
from published import files_of, formats, settings
from small_dataset import SmallDataset

from skindx.core.errors import UserError
from skindx.data.boxes.box_exchange import export_boxes
from skindx.data.layout import LEDGER, STORE, store_bytes, store_files, stored_files, sweep_store
from skindx.data.ledger import read_ledger
from skindx.data.loader.source import Files
from skindx.data.manifest import read_image, read_manifest, write_manifest
from skindx.data.publish.assemble import drop, publish
from skindx.data.publish.publish_formats import FORMATS, Format
from skindx.data.publish.published_rows import read_published, write_rows


@pytest.fixture
def small(tmp_path: Path) -> SmallDataset:
    """Two images, one of them with a reviewed box table."""
    small = SmallDataset(tmp_path / "data")
    small.add(boxes=())
    small.add()
    small.write()
    return small


def change(small: SmallDataset, **fields: str) -> None:
    small.records[0] = dataclasses.replace(small.records[0], **fields)
    write_manifest(small.folder, small.records)


@formats
@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("label", "../../../x", "but its taxonomy"),
        ("label", "/tmp/x", "but its taxonomy"),
        ("label", "Scabies", "'Scabies', but its"),
        ("label", "", "but its taxonomy"),
        ("split", "../../x", r"in the unknown split '\.\./\.\./x'"),
        ("split", "holdout", r"in the unknown split 'holdout' \(valid: train, val"),
        ("path", "../secret.jpg", "outside its folder"),
        ("path", "store/\0", "outside its folder"),
    ],
)
def test_nothing_is_published_of_a_label_a_split_or_a_path_that_leads_out(
    small: SmallDataset, tmp_path: Path, form: Format, field: str, value: str, problem: str
) -> None:
    change(small, **{field: value})
    before = files_of(tmp_path)
    with pytest.raises(UserError, match=problem):
        publish(small.folder, tmp_path / "a/b/pub", settings(form))
    assert files_of(tmp_path) == before


@pytest.mark.usefixtures("quick")
def test_a_published_folder_of_anyone_is_not_left_by_a_take_down(
    small: SmallDataset, tmp_path: Path
) -> None:
    pub = tmp_path / "a/b/pub"
    publish(small.folder, pub, settings("imagefolder"))
    rows = read_published(pub)
    secret = tmp_path / "secret.jpg"
    secret.write_bytes(b"secret")
    before = files_of(tmp_path / "a")
    for change in ({"split": "../.."}, {"label": "../.."}, {"path": "../x"}, {"file_name": "a/b"}):
        write_rows(pub, [dataclasses.replace(rows[0], **change), rows[1]])
        with pytest.raises(UserError):
            drop(pub, [rows[1].sha256])
    write_rows(pub, rows)
    (pub / rows[0].path).unlink()
    (pub / rows[0].path).symlink_to(secret)
    with pytest.raises(UserError, match="is a link that leads out"):
        drop(pub, [rows[1].sha256])
    (pub / rows[0].path).unlink()
    assert set(files_of(tmp_path / "a")) == set(before) - {f"b/pub/{rows[0].path}"}


def linked_file(small: SmallDataset, outside: Path) -> None:
    """Put a link to a file elsewhere in the place of an image."""
    file = small.folder / small.records[0].path
    file.rename(outside / file.name)
    file.symlink_to(outside / file.name)


def linked_folder(small: SmallDataset, outside: Path) -> None:
    """Put a link to a folder elsewhere in the place of a folder of the store."""
    folder = (small.folder / small.records[0].path).parent
    shutil.move(folder, outside / folder.name)
    folder.symlink_to(outside / folder.name)


def linked_store(small: SmallDataset, outside: Path) -> None:
    """Let the store be a folder elsewhere, and the manifest name a file there."""
    shutil.move(small.folder / STORE, outside / STORE)
    (small.folder / STORE).symlink_to(outside / STORE)
    (outside / STORE / "holiday.jpg").write_bytes(encode(paint(0), quality=90))
    change(small, path="store/holiday.jpg")


def named_folder(small: SmallDataset, outside: Path) -> None:
    """Let the manifest name a linked folder beside the store."""
    (outside / "holiday.jpg").write_bytes(encode(paint(0), quality=90))
    (small.folder / "photos").symlink_to(outside)
    change(small, path="photos/holiday.jpg")


def pipe(small: SmallDataset, outside: Path) -> None:
    """Put a pipe in the place of an image: to read it would wait for ever."""
    file = small.folder / small.records[0].path
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("trap", [linked_file, linked_folder, linked_store, named_folder, pipe])
def test_no_verb_reads_an_image_outside_the_dataset(
    small: SmallDataset, tmp_path: Path, trap: object
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    trap(small, outside)  # type: ignore[operator]
    record = read_manifest(small.folder)[0]
    refused = pytest.raises(UserError, match="is not a usable file of the dataset")
    for form in FORMATS:
        with refused:
            publish(small.folder, tmp_path / "pub", settings(form))
    for copy in (True, False):
        with refused:
            export_boxes(small.folder, tmp_path / "boxes", "yolo", copy=copy)
    with refused:
        read_image(small.folder, record)
    with refused:
        Files(small.folder, [record]).read(0)
    with refused:
        Files(small.folder, [record]).size_bytes(0)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "outside"}


@pytest.mark.usefixtures("quick")
def test_links_within_the_store_and_a_store_elsewhere_are_followed(
    small: SmallDataset, tmp_path: Path
) -> None:
    shutil.move(small.folder / STORE, tmp_path / "disk")
    (small.folder / STORE).symlink_to(tmp_path / "disk")
    first, second = (small.folder / record.path for record in small.records)
    inside = first.with_name(f"{'0' * 64}.jpg")
    inside.symlink_to(second)
    assert set(stored_files(small.folder)) == {first, second, inside}
    assert store_bytes(small.folder, first.read_bytes(), ".jpg")[1] == small.records[0].path
    publish(small.folder, tmp_path / "pub", settings())
    assert len(read_published(tmp_path / "pub")) == 2


def test_a_rebuild_deletes_nothing_behind_a_link_in_the_store(
    small: SmallDataset, tmp_path: Path
) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mother.txt").write_text("dear")
    (small.folder / STORE / "zz").symlink_to(tmp_path / "letters")
    named = [record.path for record in small.records]
    assert sweep_store(small.folder, named) == 1
    assert (tmp_path / "letters" / "mother.txt").read_text() == "dear"
    assert not (small.folder / STORE / "zz").is_symlink()
    sha256 = small.records[0].sha256
    shutil.rmtree(small.folder / STORE / sha256[:2])
    (tmp_path / "letters" / f"{sha256}.jpg").write_text("dear")
    (small.folder / STORE / sha256[:2]).symlink_to(tmp_path / "letters")
    with pytest.raises(UserError, match="is a link that leads out"):
        store_files(small.folder, sha256)
    with pytest.raises(UserError, match="is a link that leads out"):
        store_bytes(small.folder, encode(paint(0), quality=90), ".jpg")


def test_a_ledger_names_no_file_outside_its_dataset(tmp_path: Path) -> None:
    for path in ("../../letter", "/etc/passwd", 7):
        row = {"url": "a", "label": "b", "status": "stored", "path": path}
        (tmp_path / LEDGER).write_text(json.dumps(row) + "\n")
        with pytest.raises(UserError, match="outside the dataset"):
            read_ledger(tmp_path)
