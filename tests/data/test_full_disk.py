"""A disk without room: one sentence, nothing half published, and the same command goes on."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from local_site import Answer, LocalSite, Page, category, figures, html
from paint_images import encode, paint

from skindx.core.errors import UserError, needs_room
from skindx.data.build.acquire import acquire
from skindx.data.build.build_dataset import build, load_build_settings
from skindx.data.crawl.fetch_settings import FetchSettings, OriginPolicy
from skindx.data.layout import MANIFEST
from skindx.data.ledger import read_ledger
from skindx.data.manifest import read_manifest
from skindx.data.sources.atlas import AtlasSource

FULL = "the disk of .* is full; free some space on it and run the same command again"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a disk of 3 MB of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small tmpfs cannot be mounted here: that needs root and CAP_SYS_ADMIN")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Leave no room."""
    with (disk / "ballast").open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def test_a_build_from_a_folder(disk: Path, tmp_path: Path) -> None:
    for number in range(8):
        for shift, label in enumerate(("acne", "wart")):
            # As BMP each has 300 kB: the store alone needs more room than there is.
            file = tmp_path / "pictures" / label / f"{number}.bmp"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encode(paint(100 * shift + number, 360, 280), "BMP"))
    settings, out = load_build_settings(tmp_path / "pictures", ["workers=1"]), disk / "out"
    with pytest.raises(UserError, match=FULL):
        build(settings, out)
    stored = {file.name for file in (out / "store").glob("*/*")}
    assert stored
    assert not [name for name in stored if ".tmp-" in name]
    assert not (out / MANIFEST).exists()
    subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)

    def fill_when_compared(stage: str, done: int, total: int) -> None:
        if stage == "compare" and done == total:
            fill(disk)

    with pytest.raises(UserError, match=FULL):
        build(settings, out, progress=fill_when_compared)
    assert {path.name for path in out.iterdir()} == {"store", "copies", ".shards"}
    (disk / "ballast").unlink()
    assert build(settings, out).kept == len(read_manifest(out)) == 16
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    with pytest.raises(UserError, match=FULL):
        build(settings, out, progress=fill_when_compared)
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


def test_a_crawl(disk: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(0)
    names = [f"/{number}.png" for number in range(12)]
    pages: dict[str, Page] = {"/": html(category("/c/", "Acne")), "/c/": html(figures(*names))}
    with LocalSite(pages) as site:
        site.pages["/robots.txt"] = Answer(b"", 404)
        for name in names:
            pixels = noise.integers(0, 256, (400, 300, 3), np.uint8)
            site.pages[name] = Answer(encode(pixels, "PNG"))
        own = OriginPolicy(concurrency=1, delay_s=0)
        fetch = FetchSettings(origins={site.origin: own}, allow_private=(site.netloc,))
        source = AtlasSource(kind="atlas", start=site.origin + "/")
        with pytest.raises(UserError, match=FULL):
            acquire([source], fetch, disk / "out")
        stored = [row for row in read_ledger(disk / "out") if row.status == "stored"]
        assert 0 < len(stored) < 12
        subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)
        rows = acquire([source], fetch, disk / "out")
    assert [row.status for row in rows] == ["stored"] * 12
    asked = [path for path in site.asked if path.endswith(".png")]
    assert len(asked) <= 14, "what was stored is not fetched again"


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), needs_room(tmp_path):
        raise PermissionError(13, "Permission denied")
    with pytest.raises(OSError, match="3 requested"), needs_room(tmp_path):
        raise OSError("3 requested and 1 written")
