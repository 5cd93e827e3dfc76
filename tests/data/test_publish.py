"""A published folder, in every format: what is in it, and what may never be."""

import csv
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from paint_images import encode, paint
from published import (
    OPEN,
    WITHHELD,
    Free,
    everything_in,
    files_of,
    formats,
    images_in,
    settings,
    with_withheld,
)
from small_dataset import LABELS, SmallDataset, free_dataset

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.data.boxes.coco import read_coco
from skindx.data.decisions import Flag, write_flags
from skindx.data.manifest import SPLITS, Issue, read_issues, read_manifest
from skindx.data.publish import clean_images
from skindx.data.publish.assemble import publish
from skindx.data.publish.publish_formats import Format
from skindx.data.publish.publish_settings import PublishSettings
from skindx.data.publish.published_rows import read_published
from skindx.imaging.decode import decode


@formats
def test_every_free_image_is_there_once_and_upright(free: Free, form: Format) -> None:
    small, pub = free[0], free[1][form]
    images = images_in(pub, form)
    assert images.keys() == {f"{record.sha256}.jpg" for record in small.records}
    for record in small.records:
        stored = (small.folder / record.path).read_bytes()
        assert np.array_equal(decode(images[f"{record.sha256}.jpg"]), decode(stored))
    for row in read_published(pub):
        assert row.published_sha256 == hashlib.sha256(images[row.file_name]).hexdigest()
        assert (pub / row.path).is_file()


@formats
def test_sums_are_right_and_complete(free: Free, form: Format) -> None:
    pub = free[1][form]
    subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=pub, check=True
    )
    listed = (pub / "SHA256SUMS").read_text().splitlines()
    assert {line.split("  ", 1)[1] for line in listed} == files_of(pub).keys() - {"SHA256SUMS"}


@pytest.mark.usefixtures("quick")
@formats
def test_no_byte_of_a_withheld_image_is_published(tmp_path: Path, form: Format) -> None:
    dataset, withheld, free = with_withheld(tmp_path / "data")
    done = publish(dataset, tmp_path / "pub", settings(form, unaudited=False))
    assert done.withheld == {**dict.fromkeys(WITHHELD, 1), "reviewed": 2}
    rows = {row.sha256: row for row in read_published(tmp_path / "pub")}
    assert rows.keys() == withheld.keys() | free
    for sha256, reason in withheld.items():
        row = rows[sha256]
        assert row.withheld == reason
        assert row.withheld_detail.endswith(".")
        assert (row.path, row.file_name, row.published_sha256) == ("", "", "")
        # The address of a face is not given away either.
        named = reason not in ("reviewed", "review-pending")
        assert row.source_url.startswith("https://site.example/") == named
        assert bool(row.source_url or row.creator.strip() or row.retrieved) == named
        assert "face" not in row.withheld_detail
    assert {sha256 for sha256, row in rows.items() if not row.withheld} == free
    published = everything_in(tmp_path / "pub")
    paths = {record.sha256: record.path for record in read_manifest(dataset)}
    for sha256 in withheld:
        data = (dataset / paths[sha256]).read_bytes()
        # What a coded image says of itself only: every run of 24 bytes of its scan.
        for start in range(700, len(data) - 24, 24):
            assert data[start : start + 24] not in published
    assert b"nurse" not in published
    for sha256 in free:  # the search does find what is published
        data = (dataset / paths[sha256]).read_bytes()
        assert data[700:1400] in published


@pytest.mark.usefixtures("quick")
def test_a_dataset_nobody_looked_through_is_refused(tmp_path: Path) -> None:
    small = free_dataset(tmp_path / "data")
    dataset, strict = small.write(), settings(unaudited=False)
    with pytest.raises(UserError, match=r"16 of the 16 .* not checked .*unaudited"):
        publish(dataset, tmp_path / "pub", strict)
    write_flags(dataset, [], ["label"])  # another look than for people
    with pytest.raises(UserError, match="16 of the 16 images"):
        publish(dataset, tmp_path / "pub", strict)
    write_flags(dataset, [], ["face", "text"])
    write_flags(dataset, [], ["intimate"])
    publish(dataset, tmp_path / "pub", strict)
    small.add()  # a rebuilt dataset has an image that came after the look
    small.write()
    with pytest.raises(UserError, match=r"^1 of the 17 images"):
        publish(dataset, tmp_path / "pub", strict)
    assert len(read_published(tmp_path / "pub")) == 16


@pytest.mark.usefixtures("quick")
def test_an_audited_copy_of_an_unaudited_dataset_still_withholds_flags(tmp_path: Path) -> None:
    small = free_dataset(tmp_path / "data")
    dataset = small.write()
    write_flags(dataset, [Flag(small.records[0].sha256, "face", 1.0)], ["face"])
    assert publish(dataset, tmp_path / "pub", OPEN).withheld == {"review-pending": 1}


def test_nothing_of_this_disk_and_no_patient_is_named(tmp_path: Path) -> None:
    small = free_dataset(tmp_path / "data")
    drawn = Box(1, 2, 3, 4, drawn_by="dr.smith@clinic.example")
    small.add(
        source_url="Acne/Jane Doe 1970.jpg",
        source="folder:pictures",
        group="Jane Doe",
        caption="Jane Doe, 54, left arm; write to jane@clinic.example",
        boxes=(drawn,),
    )
    small.issues += [
        Issue("Acne/Jane Doe.jpg", "ab", "Acne", "damaged", "Acne/Jane Doe.jpg is torn"),
        Issue("https://s.example/1", "cd", "Acne", "near-duplicate", "as Jane Doe", "ef"),
        Issue("https://s.example/2", "cd", "Acne", "too-small", "32 x 32 pixels"),
        Issue("https://s.example/Jane", "0e", "Acne", "taken-down", "asked by mail"),
    ]
    publish(small.write(), tmp_path / "pub", OPEN)
    everything = everything_in(tmp_path / "pub")
    for name in (b"Jane", b"jane@", b"patient-", b"dr.smith", str(tmp_path).encode()):
        assert name not in everything
    assert b"a person" in everything
    assert [(i.url, i.reason, i.detail) for i in read_issues(tmp_path / "pub")] == [
        ("", "damaged", ""),
        ("https://s.example/1", "near-duplicate", ""),
        ("https://s.example/2", "too-small", "32 x 32 pixels"),
    ]


@pytest.mark.usefixtures("quick")
def test_groups_keep_together_under_new_names(tmp_path: Path) -> None:
    small = free_dataset(tmp_path / "data", 12)
    twins = sorted(small.add(group="Jane", split="train") for _ in range(2))
    publish(small.write(), tmp_path / "pub", OPEN)
    groups = {row.sha256: row.group for row in read_published(tmp_path / "pub")}
    assert groups[twins[0]] == groups[twins[1]] == twins[0]
    assert len(set(groups.values())) == 13
    with (tmp_path / "pub" / "splits.csv").open(newline="") as file:
        listed = list(csv.DictReader(file))
    assert {row["sha256"]: row["group"] for row in listed} == groups
    splits = {record.sha256: record.split for record in small.records}
    assert {row["sha256"]: row["split"] for row in listed} == splits


@formats
def test_the_same_dataset_gives_the_same_bytes(
    tmp_path: Path, form: Format, request: pytest.FixtureRequest
) -> None:
    if form != "hub":  # plots and the check of Croissant's file are the same in every format
        request.getfixturevalue("quick")
    dataset, _, _ = with_withheld(tmp_path / "data")
    small_shards = settings(form, shard_mb=0.02, unaudited=False)
    publish(dataset, tmp_path / "one", small_shards)
    os.utime(dataset / "manifest.parquet", (1, 1))
    publish(dataset, tmp_path / "two" / "deep", small_shards)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two" / "deep")


@pytest.mark.usefixtures("quick")
def test_an_earlier_copy_is_replaced_whole_also_in_another_format(tmp_path: Path) -> None:
    dataset = free_dataset(tmp_path / "data").write()
    publish(dataset, tmp_path / "fresh", settings("hub"))
    publish(dataset, tmp_path / "pub", settings("imagefolder"))
    publish(dataset, tmp_path / "pub", settings("hub"))
    assert files_of(tmp_path / "pub") == files_of(tmp_path / "fresh")
    assert {path.name for path in tmp_path.iterdir()} == {"data", "fresh", "pub"}


@pytest.mark.usefixtures("quick")
def test_shards_are_cut_named_and_read_in_order(tmp_path: Path) -> None:
    publish(free_dataset(tmp_path / "data", 40).write(), tmp_path / "pub", settings(shard_mb=0.01))
    names = sorted(path.name for path in (tmp_path / "pub" / "data").iterdir())
    train = [name for name in names if name.startswith("train-")]
    assert len(train) > 1
    assert train == [f"train-{i:05d}-of-{len(train):05d}.parquet" for i in range(len(train))]
    hashes = [
        sha256
        for name in train
        for sha256 in pq.read_table(tmp_path / "pub" / "data" / name)["sha256"].to_pylist()
    ]
    assert hashes == sorted(hashes)
    sizes = [(tmp_path / "pub" / "data" / name).stat().st_size for name in train]
    assert max(sizes) < 40_000


@pytest.mark.usefixtures("quick")
def test_boxes_are_published_as_coco_and_read_back(tmp_path: Path) -> None:
    small = free_dataset(tmp_path / "data")
    small.add(licence="", boxes=small.records[1].boxes)
    publish(small.write(), tmp_path / "pub", OPEN)
    boxed = read_coco(tmp_path / "pub" / "coco.json").images
    one, none = (f"{small.records[number].sha256}.jpg" for number in (1, 2))
    assert boxed.keys() == {one, none}
    assert boxed[none].boxes == ()
    (box,) = boxed[one].boxes
    assert (box.x1, box.y1, box.x2, box.y2) == (10, 20, 60, 70.5)
    assert (boxed[one].width, boxed[one].height) == (120, 96)


def test_imagefolder_is_one_folder_a_split_and_class(free: Free) -> None:
    small, pub = free[0], free[1]["imagefolder"]
    with (pub / "metadata.csv").open(newline="") as file:
        listed = {row["file_name"]: row for row in csv.DictReader(file)}
    files = {f"{record.split}/{record.label}/{record.sha256}.jpg" for record in small.records}
    assert listed.keys() == files
    assert all((pub / name).is_file() for name in files)
    assert {row["licence"] for row in listed.values()} == {"CC-BY-4.0"}
    for split in SPLITS:
        folders = {path.name for path in (pub / split).iterdir() if path.is_dir()}
        assert folders == set(LABELS)
        numbers = pq.read_table(pub / split / "metadata.parquet")["label"].to_pylist()
        inside = [name for name in files if name.startswith(f"{split}/")]
        assert sorted(LABELS[n] for n in numbers) == sorted(n.split("/")[1] for n in inside)


# --- refusals -----------------------------------------------------------------------------------


def test_refusals_write_nothing(tmp_path: Path) -> None:
    small = SmallDataset(tmp_path / "data")
    for _ in range(4):
        small.add(licence="ask me")
    dataset = small.write()
    out = tmp_path / "pub"
    with pytest.raises(UserError, match=r"none of the 4 images .*licence-unknown"):
        publish(dataset, out, OPEN)
    for nobody in (" ", "me"):
        with pytest.raises(UserError, match="give --contact"):
            publish(dataset, out, settings(contact=nobody))
    with pytest.raises(UserError, match="lie one inside the other"):
        publish(dataset, dataset / "pub", OPEN)
    with pytest.raises(UserError, match=r"is not a dataset; give"):
        publish(tmp_path / "nowhere", out, OPEN)
    assert {path.name for path in tmp_path.iterdir()} == {"data"}
    out.mkdir()
    (out / "thesis.tex").write_text("ten years")
    with pytest.raises(UserError, match=r"holds other files \(thesis.tex\)"):
        publish(dataset, out, OPEN)
    assert files_of(out) == {"thesis.tex": b"ten years"}


@pytest.mark.usefixtures("quick")
def test_a_changed_store_is_found_and_the_old_copy_stays(tmp_path: Path) -> None:
    small = free_dataset(tmp_path / "data")
    dataset = small.write()
    publish(dataset, tmp_path / "pub", OPEN)
    before = files_of(tmp_path / "pub")
    (dataset / small.records[5].path).write_bytes(encode(paint(99)))
    with pytest.raises(UserError, match="is not the image"):
        publish(dataset, tmp_path / "pub", OPEN)
    assert files_of(tmp_path / "pub") == before
    assert {path.name for path in tmp_path.iterdir()} == {"data", "pub"}


KILL = """
import os, signal, sys
from pathlib import Path
from skindx.data.publish import croissant
from skindx.data.publish.assemble import publish
from skindx.data.publish.publish_settings import PublishSettings
import skindx.data.publish.assemble as side, shutil, skindx.core.atomic_files as files
side.write_plots = lambda *_: []
croissant._validate = lambda *_: None
where = sys.argv[3]
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
if where == "card": side.write_card = die
if where == "between the renames":
    replace = Path.replace
    def once(self, target):
        result = replace(self, target)
        if str(target).endswith(".old"): die()
        return result
    Path.replace = once
if where == "before the old one goes":
    remove = files.shutil.rmtree
    def once(path, *rest, **options):
        if str(path).endswith(".old"): die()
        remove(path, *rest, **options)
    files.shutil.rmtree = once
publish(Path(sys.argv[1]), Path(sys.argv[2]), PublishSettings(contact="a@b", unaudited=True))
"""


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "where",
    [
        "between the renames",
        *(pytest.param(one, marks=pytest.mark.long) for one in ("card", "before the old one goes")),
    ],
)
def test_a_killed_publish_leaves_an_old_or_a_new_one(tmp_path: Path, where: str) -> None:
    small = free_dataset(tmp_path / "data")
    out = tmp_path / "pub"
    publish(small.write(), out, PublishSettings(contact="a@b", unaudited=True))
    old = files_of(out)
    small.add()
    dataset = small.write()
    killed = subprocess.run(
        [sys.executable, "-c", KILL, dataset, out, where], timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    if where == "card":
        assert files_of(out) == old
    # The next one finds its way from any state, and leaves no copy behind.
    (dataset / small.records[0].path).unlink()
    with pytest.raises(UserError, match="cannot be read"):
        publish(dataset, out, PublishSettings(contact="a@b", unaudited=True))
    count = 17 if where == "before the old one goes" else 16
    assert len(read_published(out)) == count
    assert (files_of(out) == old) is (count == 16)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "pub"}


@pytest.mark.usefixtures("quick")
def test_processes_give_what_one_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: Free
) -> None:
    monkeypatch.setattr(clean_images, "_PER_PROCESS", 4)
    publish(free[0].folder, tmp_path / "pub", OPEN)
    name = "data/train-00000-of-00001.parquet"
    assert (tmp_path / "pub" / name).read_bytes() == (free[1]["hub"] / name).read_bytes()


@pytest.mark.long
def test_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    dataset = free_dataset(tmp_path / "data", 130).write()
    script = tmp_path / "run.py"
    script.write_text(
        "import sys; from pathlib import Path; from skindx.data.publish.assemble import publish\n"
        "from skindx.data.publish.publish_settings import PublishSettings\n"
        "if __name__ == '__main__':\n"
        "    said = PublishSettings(contact='a@b', unaudited=True)\n"
        "    tell = lambda done, total: print(done, flush=True)\n"
        "    publish(Path(sys.argv[1]), Path(sys.argv[2]), said, progress=tell)\n"
    )
    arguments = [sys.executable, script, dataset, tmp_path / "pub"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "1\n"
        threads = Path(f"/proc/{process.pid}/task").glob("*/children")
        children = [child for thread in threads for child in thread.read_text().split()]
        process.kill()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{child}/cmdline").exists() for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert children
    assert not (tmp_path / "pub").exists()
