"""What is killed everywhere: a rebuild, and a take-down. Run by kill_everywhere, in a fork."""

import dataclasses
import shutil
from pathlib import Path

from described_once import described_here, described_once
from kill_everywhere import kill_everywhere
from paint_images import encode, paint, save

from skindx.data.build.build_dataset import build, load_build_settings
from skindx.data.layout import BLOCKLIST, store_bytes
from skindx.data.ledger import LedgerRow, open_ledger, read_ledger
from skindx.data.manifest import read_issues, read_manifest
from skindx.data.removal import exclusions
from skindx.data.removal.takedown import carry_out, plan
from skindx.data.screening import screen
from skindx.data.screening.screen import Screened, screen_bytes
from skindx.data.splits.freeze import read_places
from skindx.taxonomy import load_taxonomy

PER_CLASS = 6


def screened_here(files, settings, hashes, **_: object) -> list[Screened]:
    """Screen in this process: a decoder's changes nothing on the disk, and takes a second."""
    return [screen_bytes(file.read_bytes(), settings, hashes) for file in files]


screen.screen_files = exclusions.screen_files = screened_here


def fill(root: Path, labels: str, first: int = 0) -> None:
    for n, label in enumerate(labels):
        for index in range(first, first + PER_CLASS):
            save(root / label / f"{index}.jpg", paint(100 * n + index))


def settings(root: Path, *sets: str):
    return load_build_settings(root, ["workers=1", *sets])


def rebuild(folder: Path, every: int) -> str:
    """A rebuild with other images, classes and settings: old or new, never a mixture."""
    old_source, new_source = folder / "old", folder / "new"
    fill(old_source, "ab")
    fill(new_source, "abc", first=2)
    start, work = folder / "start", folder / "work"
    build(settings(old_source), start)
    old = reported(start)
    whole = folder / "whole"
    shutil.copytree(start, whole)
    build(settings(new_source, "seed=3"), whole)
    new = reported(whole)
    assert old != new

    def check(out: Path) -> None:
        found = reported(out)
        assert found in (old, new), found
        for record in read_manifest(out):
            assert (out / record.path).stat().st_size
        build(settings(new_source, "seed=3"), out)
        assert reported(out) == new
        named = {path.name for path in out.iterdir()}
        assert not {name for name in named if name.startswith(".")}, named
        issues = {issue.sha256 for issue in read_issues(out)}
        named = {record.sha256 for record in read_manifest(out)} | issues
        assert {file.stem for file in (out / "store").glob("*/*")} == named

    def act(out: Path) -> None:
        build(settings(new_source, "seed=3"), out)

    with described_once(), described_here():
        build(settings(new_source, "seed=3"), folder / "warm")  # its forks know the descriptions
        kills = kill_everywhere(start, work, act, check, every)
    return f"{kills} changes"


def reported(out: Path) -> tuple[object, ...]:
    """Return what the tables of a dataset say, all of them, without the time of day."""
    records = read_manifest(out)  # finishes what a kill left
    return (
        [dataclasses.replace(record, retrieved="") for record in records],
        read_issues(out),
        load_taxonomy(out / "taxonomy.yaml").keys,
        (out / "recipe.yaml").read_text(),
        (out / "summary.json").read_text(),
        (out / "report.html").read_text(),
        sorted(read_places(out).items()),
    )


def take_down(folder: Path, every: int) -> str:
    """A take-down of an image and its near copy: repeated after a kill, nothing is left."""
    source, start, work = folder / "source", folder / "start", folder / "work"
    fill(source, "ab")
    save(source / "a" / "smaller.jpg", paint(0, 120, 96)[::-1].copy(), quality=70)
    build(settings(source), start)
    url, painter = "http://atlas.example/0.jpg", "A. Painter"
    data = encode(paint(0))
    sha256, path = store_bytes(start, data, ".jpg")
    with open_ledger(start) as ledger:
        row = LedgerRow(url, "a", "stored", sha256=sha256, path=path, creator=painter)
        ledger.append(row)
    (start / "cache").mkdir()
    (start / "cache" / "pixels").write_bytes(data)

    def act(out: Path) -> None:
        carry_out(plan([out], urls=[url], reason="asked by mail"))

    def check(out: Path) -> None:
        records = read_manifest(out)
        gone = sha256 not in {record.sha256 for record in records}
        if gone:
            assert (out / BLOCKLIST).exists(), "taken out before it was blocked"
        act(out)
        act(out)
        left = {file.stem for file in (out / "store").glob("*/*")}
        assert len(left) == 2 * PER_CLASS - 1, "the picture and its near copy"
        assert sha256 not in left
        assert not (out / "cache").exists()
        for file in out.rglob("*"):
            if file.is_file():
                content = file.read_bytes()
                assert data not in content, file
                assert painter.encode() not in content, file
        assert {row.status for row in read_ledger(out)} == {"taken-down"}
        records, issues = read_manifest(out), read_issues(out)
        assert [i.reason for i in issues if i.url.startswith("a/")] == ["taken-down"] * 2
        assert len(records) + len(issues) == 2 * PER_CLASS + 1
        build(settings(source), out)
        again = {record.sha256 for record in read_manifest(out)}
        assert again == {record.sha256 for record in records}

    with described_once(), described_here():
        build(settings(source), folder / "warm")
        return f"{kill_everywhere(start, work, act, check, every)} changes"
