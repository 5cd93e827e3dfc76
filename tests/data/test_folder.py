import os
from pathlib import Path

import pytest
from hostile_images import strew
from paint_images import encode, paint, save

from skindx.core.errors import UserError
from skindx.data.ledger import LedgerRow
from skindx.data.sources.folder import FolderSource, look_at_folder


def fill(folder: Path, count: int = 3, seed: int = 0) -> Path:
    for n in range(count):
        save(folder / f"{n}.jpg", paint(seed + n))
    return folder


def read(root: Path, out: Path) -> dict[str, LedgerRow]:
    source = FolderSource(path=root, licence="CC0", attribution="us", creator="me")
    return {row.url: row for row in source.gather(out)}


def test_class_folders_become_labels_and_bytes_stay(tmp_path: Path) -> None:
    root = tmp_path / "pictures"
    fill(root / "acne" / "deeper"), fill(root / "wart", seed=9)
    rows = read(root, tmp_path / "out")
    assert {row.label for row in rows.values()} == {"acne", "wart"}
    row = rows["acne/deeper/0.jpg"]
    original = root / "acne/deeper/0.jpg"
    assert (tmp_path / "out" / row.path).read_bytes() == original.read_bytes()
    assert (row.licence, row.attribution, row.creator) == ("CC0", "us", "me")
    assert (row.status, row.size_bytes) == ("stored", original.stat().st_size)


def test_split_folders_are_merged_and_named(tmp_path: Path) -> None:
    for split, seed in (("Train", 0), ("test", 20), ("VALID", 40)):
        fill(tmp_path / split / "acne", 1, seed), fill(tmp_path / split / "wart", 1, seed + 9)
    layout = look_at_folder(FolderSource(path=tmp_path))
    assert set(layout.merged) == {"Train", "test", "VALID"}
    assert [file.label for file in layout.files].count("acne") == 3


def test_what_is_no_image_has_a_row_with_its_reason(tmp_path: Path) -> None:
    root = tmp_path / "pictures"
    fill(root / "acne"), fill(root / "wart", seed=9)
    outside = save(tmp_path / "outside.jpg", paint(50))
    (root / "acne" / "notes.txt").write_text("no picture")
    (root / "acne" / "page.jpg").write_text("<html>")
    (root / "acne" / "empty.jpg").touch()
    (root / "acne" / ".hidden.jpg").write_bytes(encode(paint(51)))
    for folder in (root, root / "acne"):
        strew(folder)
    (root / "acne" / "away.jpg").symlink_to(outside)
    (root / "acne" / "up").symlink_to(tmp_path)
    (root / "acne" / "inside.jpg").symlink_to(root / "wart" / "0.jpg")
    (root / "acne" / "broken.jpg").symlink_to(root / "nowhere")
    (root / "acne" / "loop.jpg").symlink_to(root / "acne" / "loop.jpg")
    os.mkfifo(root / "acne" / "pipe.jpg")
    save(root / "loose.jpg", paint(52))
    rows = read(root, tmp_path / "out")
    odd = {url: row.status for url, row in rows.items() if row.status != "stored"}
    assert odd == {
        "acne/notes.txt": "not-a-picture",
        "acne/page.jpg": "not-a-picture",
        "acne/empty.jpg": "not-a-picture",
        "acne/away.jpg": "link-refused",
        "acne/up": "link-refused",
        "acne/broken.jpg": "unreadable",
        "acne/loop.jpg": "unreadable",
        "acne/pipe.jpg": "unreadable",
        "loose.jpg": "no-class-folder",
    }
    assert all(rows[url].detail and not rows[url].path for url in odd)
    assert rows["acne/inside.jpg"].sha256 == rows["wart/0.jpg"].sha256
    assert len(rows) == 16


def test_names_that_are_no_utf8_are_escaped(tmp_path: Path) -> None:
    root = tmp_path / "pictures"
    fill(root / "acne"), fill(root / "wart", seed=9)
    name = os.fsdecode(b"na\xefve.jpg")
    try:
        (root / "acne" / "0.jpg").rename(root / "acne" / name)
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    assert "acne/na\\xefve.jpg" in read(root, tmp_path / "out")


def test_bad_folders_are_one_sentence_and_write_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def refused(root: Path, said: str) -> None:
        with pytest.raises(UserError, match=said) as caught:
            read(root, out)
        assert "\n" not in str(caught.value)
        assert not out.exists()

    root = tmp_path / "pictures"
    refused(root, "pictures does not exist; give a folder that holds one folder")
    root.mkdir()
    refused(root, "is empty")
    save(root / "loose.jpg", paint(0))
    refused(root, "no class folders")
    refused(root / "loose.jpg", "is a file")
    fill(root / "acne")
    refused(root, "only one class, 'acne'")
    fill(root / "wart", 2, 9)
    refused(root, "the class 'wart' in .* has 2 readable images and needs at least 3")
    (root / "wart" / "2.jpg").write_text("no picture")
    refused(root, "has 2 readable images")
    save(root / "wart" / "3.jpg", paint(30))
    (root / "nevus").mkdir()
    refused(root, "the class 'nevus' in .* has 0 readable images")
    (root / "nevus").rmdir()
    fill(root / "test" / "acne")
    refused(root, r"has folders of splits \(test\) and other folders \(acne\)")
    (root / "manifest.parquet").touch()
    (root / "store").mkdir()
    refused(root, "is a dataset that `skindx build` wrote, not images to build from; give")


def test_a_folder_of_unreadable_files_is_refused(tmp_path: Path) -> None:
    for label in ("acne", "wart"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for n in range(3):
            os.mkfifo(tmp_path / "pictures" / label / f"{n}.jpg")
    with pytest.raises(UserError, match=r"none of the 6 files .* can be used"):
        read(tmp_path / "pictures", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_goes_away_while_reading_is_an_issue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "pictures"
    fill(root / "acne"), fill(root / "wart", seed=9)
    read_bytes = Path.read_bytes

    def failing(path: Path) -> bytes:
        if path == root / "acne" / "1.jpg":
            raise PermissionError(13, "Permission denied")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    row = read(root, tmp_path / "out")["acne/1.jpg"]
    assert (row.status, row.detail) == ("unreadable", "the file cannot be read (Permission denied)")


@pytest.mark.parametrize(
    "names",
    [
        ("HAM10000_images_part_1", "HAM10000_images_part_2"),
        ("train", "test"),
        ("images", "masks"),
        ("fold1", "fold-2", "acne"),
        ("Batch 01", "split"),
        ("train/images", "valid/images"),
    ],
)
def test_folders_named_as_parts_are_no_classes(tmp_path: Path, names: tuple[str, ...]) -> None:
    for seed, name in enumerate(names):
        fill(tmp_path / name, seed=10 * seed)
    with pytest.raises(UserError, match=r"names of dataset parts, not of classes.* a recipe"):
        look_at_folder(FolderSource(path=tmp_path))


def test_a_class_that_ends_like_a_part_stays_one_among_others(tmp_path: Path) -> None:
    for seed, name in enumerate(("patch test", "acne", "wart", "contest", "valid2ation")):
        fill(tmp_path / name, seed=10 * seed)
    assert len({file.label for file in look_at_folder(FolderSource(path=tmp_path)).files}) == 5
