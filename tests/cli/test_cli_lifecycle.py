"""`skindx build --freeze/--resplit`, `skindx remove`, as typed."""

import dataclasses
import errno
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import cv2
import numpy as np
import pytest
from command_line import Skindx
from tiny_bundle import pack_tiny, pack_whole

from skindx.core.atomic_files import sha256_file
from skindx.data.build.build_dataset import build, load_build_settings
from skindx.data.layout import RECIPE
from skindx.data.manifest import read_manifest
from skindx.data.publish import assemble as published
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.bundle_changes import OOD, add_provenance, replace_parts
from skindx.models.bundle.bundle_index import REMOVED_TRAINED_ON
from skindx.models.embedding_index import EmbeddingIndex, IndexRow
from skindx.models.ood.stored_check import OodImages, OodPart


def paint(path: Path, seed: int, side: int = 120) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    coarse = rng.integers(60, 220, (6, 8, 3), dtype=np.uint8)
    smooth = cv2.resize(coarse, (side + 40, side), interpolation=cv2.INTER_CUBIC)
    grain = rng.normal(0, 6, (side, side + 40, 1))  # without it they count as blurred
    cv2.imwrite(str(path), np.clip(smooth + grain, 0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with images and the dataset that is built of them."""
    folder = tmp_path_factory.mktemp("built")
    for number in range(12):
        for shift, label in enumerate(("Acne", "Rosacea")):
            paint(folder / "pictures" / label / f"{number}.png", 100 * shift + number)
    settings = ["sources.0.licence=CC0-1.0"]
    build(load_build_settings(folder / "pictures", settings), folder / "data")
    return folder


@pytest.fixture
def images(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built / "pictures", tmp_path / "pictures"))


@pytest.fixture
def data(built: Path, images: Path, tmp_path: Path) -> Path:
    """Return a copy of the dataset whose recipe names the copy of its images."""
    data = Path(shutil.copytree(built / "data", tmp_path / "data"))
    recipe = (data / RECIPE).read_text()
    (data / RECIPE).write_text(recipe.replace(str(built), str(tmp_path)))
    return data


def splits(folder: Path) -> dict[str, str]:
    return {record.source_url: record.split for record in read_manifest(folder)}


def test_freeze_and_resplit(skindx: Skindx, images: Path, data: Path, tmp_path: Path) -> None:
    before = splits(data)
    paint(images / "Acne" / "new.png", 77)
    new = tmp_path / "new"
    code, _, err = skindx("build", images, "--out", new, "--freeze", data, "--set", "seed=9")
    assert code == 0, err
    assert {url: split for url, split in splits(new).items() if url in before} == before
    code, _, err = skindx("build", images, "--out", data, "--resplit", "--set", "seed=9")
    assert code == 0, err
    assert {url: split for url, split in splits(data).items() if url in before} != before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("build", "--out", "x"), "build --help"),
        (
            ("build", "PICTURES", "--out", "x", "--diff", "old"),
            "--diff was removed in skindx 1.0; compare",
        ),
        (
            ("build", "PICTURES", "--out", "x", "--freeze", "DATA", "--resplit"),
            "remove --resplit",
        ),
        (("build", "PICTURES", "--out", "x", "--freeze", "nowhere"), "nowhere does not exist"),
        (("remove", "DATA"), "add --url URL or --sha SHA256"),
        (("remove", "nowhere", "--sha", "a" * 64), "is not a dataset"),
        (("remove", "DATA", "--url", "http://x"), "has no image of the URL"),
        (("remove", "DATA", "--url", "Acne/1.png", "--bundle", "no"), "bundle no does not exist"),
        (("remove", "DATA", "--url", "Acne/1.png", "--published", "no"), "no was not written by"),
        (("remove", "DATA", "--url", "Acne/1.png", "--published", "DATA"), "was not written by"),
        (("gallery", "DATA"), "was removed in skindx 1.0; run `skindx review DATASET`"),
    ],
)
def test_mistakes_are_one_sentence_and_change_nothing(
    skindx: Skindx,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"DATA": "data", "PICTURES": "pictures"}
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    code, _, err = skindx(*(names.get(argument, argument) for argument in arguments))
    assert code == 2, err
    assert said in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    assert {path.name for path in tmp_path.iterdir()} == {"data", "pictures"}


def test_an_image_goes_from_everywhere(
    skindx: Skindx, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = next(image for image in read_manifest(data) if image.split == "train")
    gallery = EmbeddingIndex.from_rows(
        [IndexRow(record.sha256, "a", 0), IndexRow("0" * 64, "a", 1)], np.eye(2), [b"j", b""]
    )
    bundle = pack_tiny(tmp_path / "run" / "bundle", gallery=gallery).path
    add_provenance(bundle, {"manifest sha256": sha256_file(data / "manifest.parquet")})
    (tmp_path / "run" / "evaluation").mkdir()
    (data / "gallery" / "thumbs").mkdir(parents=True)  # a version before 1.0 wrote it
    (data / "gallery" / "gallery.json").write_text("{}")
    (data / "gallery" / "thumbs" / f"{record.sha256}.jpg").touch()

    dropped: list[tuple[Path, set[str]]] = []

    def drop(pub: Path, sha256s: Collection[str]) -> int:
        dropped.append((pub, set(sha256s)))
        return 1

    monkeypatch.setattr(published, "drop", drop)
    monkeypatch.setattr(published, "held_in", lambda pub, sha256s: len(set(sha256s)))
    (tmp_path / "pub").mkdir()
    (tmp_path / "pub" / "publish.json").write_text("{}")

    places = ("--published", tmp_path / "pub", "--bundle", bundle)
    asked = ("remove", data, "--sha", record.sha256, "--reason", "asked by letter", *places)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code, out, err = skindx(*asked, "--dry-run")
    assert code == 0, err
    assert "These would go:" in out
    assert record.source_url in out
    assert "learned from 1 of them" in out
    assert "its index of similar cases loses 1," in " ".join(out.split())
    own = tmp_path / "pictures" / record.source_url
    assert f"your own copy stays until you delete it: {own}" in out
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert dropped == []
    assert f"published {tmp_path / 'pub'}: 1 would be taken out" in out

    for _ in range(2):
        code, out, err = skindx(*asked)
        assert code == 0, err
        assert "run `skindx evaluate` again" in " ".join(out.split())
        assert dropped.pop() == (tmp_path / "pub", {record.sha256})
        assert open_bundle(bundle).spec.provenance[REMOVED_TRAINED_ON] == [record.sha256]
        left = open_bundle(bundle).gallery()
        assert left is not None
        assert [row.sha256 for row in left.rows] == ["0" * 64]
        assert not (data / "gallery").exists()
        assert not list(tmp_path.rglob(f"{record.sha256}.*"))


def test_a_bundle_says_which_of_its_parts_change(
    skindx: Skindx, data: Path, tmp_path: Path
) -> None:
    """One image is of no use to the check alone; with the other goes all of its calibration."""
    first, second = (record.sha256 for record in read_manifest(data)[:2])
    bundle = pack_whole(tmp_path / "bundle")
    images, spec = bundle.ood_images(), bundle.spec.ood
    assert images is not None
    assert spec is not None
    rows = [
        dataclasses.replace(row, group="one") if row.split == "calibration" else row
        for row in images.rows
    ]
    rows[6] = dataclasses.replace(rows[6], sha256=first)
    rows[-1] = dataclasses.replace(rows[-1], sha256=second)
    part = OodPart.fit(spec.detectors, OodImages(tuple(rows), images.features))
    replace_parts(bundle.path, {OOD: part})

    asked = ("remove", data, "--only-exact", "--bundle", bundle.path, "--sha")
    for more in (("--dry-run",), ()):
        code, out, err = skindx(*asked, first, *more)
        assert code == 0, err
        said = " ".join(out.split())
        assert "check loses 2 of its images and is fitted again without them." in said
        assert "similar cases loses" not in said
    assert open_bundle(bundle.path).ood() is not None
    code, out, err = skindx(*asked, second)
    assert code == 0, err
    said = " ".join(out.split())
    assert "check loses 40 of its images and is removed, since too few are left" in said
    assert open_bundle(bundle.path).ood() is None


PUBLISH = ("publish", "--unaudited", "--contact", "a@b")


def _failing(number: int, words: str) -> Callable[..., None]:
    """Return a mkdir that makes every folder but those under a temporary name."""
    make = Path.mkdir

    def mkdir(path: Path, *arguments: object, **named: object) -> None:
        if ".tmp-" in path.name:
            raise OSError(number, words, str(path))
        make(path, *arguments, **named)

    return mkdir


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_folder_that_cannot_be_written_is_one_sentence(
    skindx: Skindx, data: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(Path, "mkdir", _failing(number, "It is refused"))
    code, _, err = skindx(*PUBLISH, data, "--out", data.parent / "public")
    assert code == 2
    assert err.startswith(f"error: {data.parent}/public: It is refused; ")
    assert err.count("\n") == 1


def test_a_name_that_is_too_long_is_one_sentence(
    skindx: Skindx, data: Path, tmp_path: Path
) -> None:
    code, _, err = skindx(*PUBLISH, data, "--out", tmp_path / ("x" * 300))
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"error: the name {'x' * 40}… is longer than file systems allow")


def test_a_write_without_room_is_one_sentence(
    skindx: Skindx, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write, unlike making a folder, does not say to which file."""

    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("skindx.data.publish.assemble.write_card", no_room)
    code, _, err = skindx(*PUBLISH, data, "--out", data.parent / "public")
    assert code == 2
    out = data.parent / "public"
    assert err.splitlines()[-1] == (
        f"error: {out}: No space left on device; make room and run the command again."
    )
    assert "Traceback" not in err


def test_a_folder_below_a_file_is_one_sentence(
    skindx: Skindx, data: Path, images: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for verb in (("build", images), (*PUBLISH, data)):
        code, _, err = skindx(*verb, "--out", file / "out")
        assert code == 2
        assert err == (f"error: {file} is a file, not a folder; give another folder.\n")
    assert file.read_text() == "mine"


def test_another_failure_of_the_system_keeps_its_traceback(
    skindx: Skindx, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "mkdir", _failing(errno.EIO, "Input/output error"))
    with pytest.raises(OSError, match="Input/output"):
        skindx(*PUBLISH, data, "--out", data.parent / "public")
