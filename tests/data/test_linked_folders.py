"""Class folders that are links: refused by name, or followed where the source says so."""

import shutil
from pathlib import Path

import pytest

from skindx.core.errors import UserError
from skindx.data.sources.folder import FolderSource, look_at_folder

PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """Two class folders elsewhere, and a folder of links to them."""
    for name in ("Nevus", "Wart"):
        (tmp_path / "disk" / name).mkdir(parents=True)
        for index in range(3):
            (tmp_path / "disk" / name / f"{index}.png").write_bytes(PNG)
    root = tmp_path / "mine"
    root.mkdir()
    for name in ("Nevus", "Wart"):
        (root / name).symlink_to(tmp_path / "disk" / name)
    return root


def test_a_linked_class_folder_is_named_with_what_to_do(linked: Path) -> None:
    with pytest.raises(UserError, match=r"Nevus is a link .*follow_links=true"):
        look_at_folder(FolderSource(path=linked))


def test_links_are_followed_where_the_source_says_so(linked: Path) -> None:
    files = look_at_folder(FolderSource(path=linked, follow_links=True)).files
    assert [(file.label, file.status) for file in files] == [
        *[("Nevus", "stored")] * 3,
        *[("Wart", "stored")] * 3,
    ]


def test_a_folder_that_is_itself_a_link_is_read(linked: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    assert len(look_at_folder(FolderSource(path=tmp_path / "link")).files) == 6


def test_a_link_to_a_folder_above_ends(linked: Path, tmp_path: Path) -> None:
    (tmp_path / "disk" / "Wart" / "again").symlink_to(tmp_path / "disk" / "Wart")
    files = look_at_folder(FolderSource(path=linked, follow_links=True)).files
    refused = [file for file in files if file.status == "link-refused"]
    assert [file.path.name for file in refused] == ["again"]
    assert len(files) == 7


def test_two_real_classes_beside_a_link_are_read_and_the_link_is_listed(linked: Path) -> None:
    for name in ("A", "B"):
        shutil.copytree(linked.parent / "disk" / "Wart", linked / name)
    files = look_at_folder(FolderSource(path=linked)).files
    assert sorted({(file.label, file.status) for file in files}) == [
        ("", "link-refused"),
        ("A", "stored"),
        ("B", "stored"),
    ]


def test_a_source_without_links_is_hashed_as_before() -> None:
    assert "follow_links" not in FolderSource(path=Path("x")).model_dump(mode="json")
    assert FolderSource(path=Path("x"), follow_links=True).model_dump()["follow_links"] is True
