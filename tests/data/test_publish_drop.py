"""Take-down: what is dropped from a published folder was never in it."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from paint_images import encode, paint
from published import files_of
from small_dataset import SmallDataset, free_dataset

from skindx.core.errors import UserError
from skindx.data.manifest import Issue
from skindx.data.publish.assemble import drop, held_in, publish
from skindx.data.publish.publish_formats import FORMATS, Format
from skindx.data.publish.publish_settings import PublishSettings
from skindx.data.publish.published_rows import read_published


def settings(form: Format = "hub") -> PublishSettings:
    # Shards of a few images: a drop changes where they are cut.
    return PublishSettings(contact="a@b", unaudited=True, format=form, shard_mb=0.015)


def texts(folder: Path) -> Iterator[bytes]:
    """Yield every byte of a folder, compressed tables also in the open."""
    for name, data in files_of(folder).items():
        yield data
        if name.endswith(".parquet"):
            yield repr(pq.read_table(folder / name).to_pylist()).encode()
        if name.endswith(".tar"):
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                yield repr(tar.getnames()).encode()


def a_dataset(folder: Path) -> tuple[SmallDataset, str, str]:
    """Return a dataset, one of its images that is published, one that is withheld."""
    small = free_dataset(folder, 24)
    twin = small.records[3].group
    victim = small.add(
        encode(paint(300), quality=85),
        group=twin,
        source_url="https://jane.example/me.jpg",
        page_url="https://jane.example/",
        split=small.records[3].split,
        retrieved="2030-01-01T00:00:00+00:00",
        boxes=small.records[1].boxes,
    )
    shy = small.add(encode(paint(301)), licence="", source_url="https://jane.example/shy.jpg")
    small.issues += [
        Issue("https://jane.example/copy.jpg", "c0", "Acne", "near-duplicate", "", victim),
        Issue("https://jane.example/again.jpg", victim, "Acne", "exact-duplicate", "", victim),
        Issue("https://other.example/x.jpg", "c1", "Acne", "too-small", "32 x 32 pixels"),
    ]
    return small, victim, shy


def without(small: SmallDataset, gone: set[str]) -> SmallDataset:
    """Return the dataset as it were had the images never been found."""
    never = SmallDataset(small.folder)
    never.records = [record for record in small.records if record.sha256 not in gone]
    never.issues = [i for i in small.issues if not {i.sha256, i.kept_sha256} & gone]
    return never


def whole(request: pytest.FixtureRequest, form: Format) -> None:
    """Leave out plots and the validation by mlcroissant but in one format."""
    if form != "hub":
        request.getfixturevalue("quick")


@pytest.mark.parametrize("form", FORMATS)
def test_a_dropped_image_leaves_what_had_been_without_it(
    tmp_path: Path, form: Format, request: pytest.FixtureRequest
) -> None:
    whole(request, form)
    small, victim, shy = a_dataset(tmp_path / "data")
    pub = tmp_path / "pub"
    publish(small.write(), pub, settings(form))
    row = next(row for row in read_published(pub) if row.sha256 == victim)
    data = (tmp_path / "data" / f"store/{victim[:2]}/{victim}.jpg").read_bytes()
    assert any(b"jane.example" in text for text in texts(pub))
    assert drop(pub, [victim.upper(), shy, "f" * 64]) == 2
    publish(without(small, {victim, shy}).write(), tmp_path / "never", settings(form))
    assert files_of(pub) == files_of(tmp_path / "never")
    for text in texts(pub):
        for trace in (
            victim.encode(),
            row.published_sha256.encode(),
            b"jane.example",
            shy.encode(),
        ):
            assert trace not in text
        assert all(data[at : at + 24] not in text for at in range(700, len(data) - 24, 24))
    assert {path.name for path in tmp_path.iterdir()} == {"data", "pub", "never"}
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=pub, check=True)


@pytest.mark.usefixtures("quick")
def test_published_bytes_name_their_image_too_and_others_change_nothing(tmp_path: Path) -> None:
    small, _, _ = a_dataset(tmp_path / "data")
    commented = small.add(encode(paint(400), comment=b"so that both hashes differ"))
    publish(small.write(), tmp_path / "pub", settings())
    rows = {row.sha256: row for row in read_published(tmp_path / "pub")}
    assert rows[commented].published_sha256 != commented
    before = files_of(tmp_path / "pub")
    inode = (tmp_path / "pub").stat().st_ino
    assert drop(tmp_path / "pub", []) == 0
    assert drop(tmp_path / "pub", ["0" * 64]) == 0
    assert files_of(tmp_path / "pub") == before
    assert (tmp_path / "pub").stat().st_ino == inode
    named = {rows[commented].published_sha256, "0" * 64}
    assert held_in(tmp_path / "pub", named) == 1
    assert drop(tmp_path / "pub", named) == 1
    assert held_in(tmp_path / "pub", named) == 0
    assert commented not in {row.sha256 for row in read_published(tmp_path / "pub")}


@pytest.mark.usefixtures("quick")
def test_a_duplicate_that_never_entered_loses_its_row_as_well(tmp_path: Path) -> None:
    small, victim, _ = a_dataset(tmp_path / "data")
    publish(small.write(), tmp_path / "pub", settings())
    assert drop(tmp_path / "pub", ["c0"]) == 0
    issues = pq.read_table(tmp_path / "pub" / "issues.parquet")["sha256"].to_pylist()
    assert issues == [victim, "c1"]


@pytest.mark.parametrize("form", FORMATS)
def test_also_the_last_image_can_go(
    tmp_path: Path, form: Format, request: pytest.FixtureRequest
) -> None:
    whole(request, form)
    small = free_dataset(tmp_path / "data", 4)
    shy = small.add(licence="")
    publish(small.write(), tmp_path / "pub", settings(form))
    free = [record.sha256 for record in small.records[:4]]
    assert drop(tmp_path / "pub", free) == 4
    (left,) = read_published(tmp_path / "pub")
    assert (left.sha256, left.withheld) == (shy, "licence-unknown")
    assert json.loads((tmp_path / "pub" / "coco.json").read_text())["images"] == []
    assert drop(tmp_path / "pub", [shy]) == 1
    assert read_published(tmp_path / "pub") == []
    assert "0 images of skin" in (tmp_path / "pub" / "README.md").read_text()
    subprocess.run(
        ["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path / "pub", check=True
    )


@pytest.mark.usefixtures("quick")
def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="was not written by `skindx publish`"):
        drop(tmp_path / "nowhere", ["ab"])
    small, victim, _ = a_dataset(tmp_path / "data")
    pub = tmp_path / "pub"
    publish(small.write(), pub, settings("imagefolder"))
    other = next(row for row in read_published(pub) if row.path and row.sha256 != victim)
    (pub / other.path).write_bytes(encode(paint(500)))
    before = files_of(pub)
    with pytest.raises(UserError, match=r"is not the image that .*publish"):
        drop(pub, [victim])
    assert files_of(pub) == before
    (pub / "publish.json").write_text("{}")
    with pytest.raises(UserError, match=r"damaged \(name: Field required\); run `skindx publish`"):
        drop(pub, [victim])


HOLD = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("quick")
def test_one_process_at_a_time(tmp_path: Path) -> None:
    small, victim, _ = a_dataset(tmp_path / "data")
    publish(small.write(), tmp_path / "pub", settings())
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match="another publish or take-down is running"):
            drop(tmp_path / "pub", [victim])
        other.kill()
    assert drop(tmp_path / "pub", [victim]) == 1


KILL = """
import os, signal, sys
from pathlib import Path
from skindx.data.publish import croissant
from skindx.data.publish.assemble import drop
import skindx.data.publish.assemble as side, skindx.core.atomic_files as files
side.write_plots = lambda *_: []
croissant._validate = lambda *_: None
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "before": side.write_card = die
else: files.shutil.rmtree = die
drop(Path(sys.argv[1]), [sys.argv[2]])
"""


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.long), "after"])
def test_a_killed_drop_is_finished_by_the_next_and_no_copy_stays(tmp_path: Path, when: str) -> None:
    small, victim, _ = a_dataset(tmp_path / "data")
    pub = tmp_path / "pub"
    publish(small.write(), pub, settings())
    before = files_of(pub)
    killed = subprocess.run(
        [sys.executable, "-c", KILL, pub, victim, when], timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 3  # noqa: PTH208
    assert (files_of(pub) == before) is (when == "before")
    assert drop(pub, [victim]) == (1 if when == "before" else 0)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "pub"}
    assert victim not in {row.sha256 for row in read_published(pub)}
