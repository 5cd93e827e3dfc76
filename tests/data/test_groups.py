import unicodedata
from pathlib import Path

import numpy as np
import pytest

from skindx.core.errors import UserError
from skindx.data.copies.deduplicate import LabelledImage, distinct
from skindx.data.ledger import LedgerRow, file_name
from skindx.data.screening.screen import Screened
from skindx.data.splits.groups import GroupKeys, GroupSettings, GroupTable, group_names

SOUND = Screened(None, "", 100, 100, np.zeros((2, 8), np.uint64))


def image(sha: str, url: str = "", page: str = "", group: str = "") -> LabelledImage:
    row = LedgerRow(
        url=url or f"{sha}.jpg", label="a", status="stored", sha256=sha, page_url=page, group=group
    )
    return LabelledImage(row, "a", SOUND)


def names(
    images: list[LabelledImage], settings: GroupSettings, links: list[tuple[int, int, int]] = ()
) -> dict[str, str]:
    table = np.array(links, np.int64).reshape(-1, 3)
    return group_names(distinct(images), table, GroupKeys(settings), settings.radius)


def lesions(tmp_path: Path, text: str, **options: str) -> GroupSettings:
    path = tmp_path / "lesions.csv"
    path.write_text(text)
    table = {"path": path, "key_column": "image_id", "group_column": "lesion_id", **options}
    return GroupSettings(tables=(GroupTable(**table),))


def test_a_table_ties_and_names_groups(tmp_path: Path) -> None:
    settings = lesions(tmp_path, "image_id,lesion_id\nI_1,L_7\nI_2,L_7\nI_3,L_8\nI_4,\n")
    images = [image(f"s{n}", f"Train/x/I_{n}.jpg") for n in range(1, 5)]
    assert names(images, settings) == {"s1": "L_7", "s2": "L_7", "s3": "L_8", "s4": "s4"}


def test_letters_are_the_same_composed_and_apart(tmp_path: Path) -> None:
    apart, composed = (unicodedata.normalize(form, "läsion") for form in ("NFD", "NFC"))
    settings = lesions(tmp_path, f"image_id,lesion_id\n{composed}1,L_7\n{apart}2,L_7\n")
    images = [image("s1", f"{apart}1.jpg"), image("s2", f"{composed}2.jpg")]
    assert names(images, settings) == {"s1": "L_7", "s2": "L_7"}


def test_links_within_the_radius_tie_and_bridge_keys(tmp_path: Path) -> None:
    settings = lesions(tmp_path, "image_id,lesion_id\nI_1,L_8\nI_2,L_7\n")
    images = [image("s1", "I_1.jpg"), image("s2", "I_2.jpg"), image("s3"), image("s4")]
    tied = names(images, settings, [(0, 1, 6), (2, 3, 7)])
    assert tied == {"s1": "L_7", "s2": "L_7", "s3": "s3", "s4": "s4"}


def test_copies_of_the_same_bytes_bring_each_others_keys(tmp_path: Path) -> None:
    settings = lesions(tmp_path, "image_id,lesion_id\nI_1,L_1\n")
    for other in ("a.jpg", "A.jpg"):  # which comes after the key's, and before it
        images = [image("s1", other), image("s1", "I_1.jpg")]
        assert names(images, settings) == {"s1": "L_1"}


def test_pages_tie_only_when_asked_and_source_groups_always() -> None:
    images = [image("s1", page="p"), image("s2", page="p", group="g"), image("s3")]
    images.append(image("s4", group="g"))
    assert len(set(names(images, GroupSettings()).values())) == 3
    assert len(set(names(images, GroupSettings(by_page=True)).values())) == 2


def test_a_group_is_one_wherever_in_its_source_an_image_comes_from() -> None:
    rows = [
        LedgerRow(f"{n}.jpg", "a", "stored", sha256=f"s{n}", source=source, group="P1")
        for n, source in enumerate(("s @ one.org", "s @ two.org", "s", "r"))
    ]
    tied = names([LabelledImage(row, "a", SOUND) for row in rows], GroupSettings())
    assert tied == {"s0": "s/P1", "s1": "s/P1", "s2": "s/P1", "s3": "r/P1"}


def test_the_key_pattern_finds_the_key(tmp_path: Path) -> None:
    text = "image_id,lesion_id\nISIC_0000001,L\n"
    settings = lesions(tmp_path, text, key_pattern=r"(ISIC_\d{7})")
    assert names([image("s", "a/ISIC_0000001(1).jpg")], settings) == {"s": "L"}


def test_wrong_tables_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'lesion_id', .*; choose one of image_id, lesion"):
        GroupKeys(lesions(tmp_path, "image_id,lesion\n1,2\n"))
    missing = GroupTable(path=tmp_path / "no.csv", key_column="a", group_column="b")
    with pytest.raises(UserError, match=r"no\.csv does not exist"):
        GroupKeys(GroupSettings(tables=(missing,)))
    with pytest.raises(ValueError, match="one pair of brackets"):
        GroupTable(path=tmp_path, key_column="a", group_column="b", key_pattern="x")
    unrelated = GroupKeys(lesions(tmp_path, "image_id,lesion_id\nI_1,L_1\n"))
    with pytest.raises(UserError, match=r"no value of the column 'image_id'.*'s1\.jpg'"):
        unrelated.check(distinct([image("s1")]))


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("Train/nevus/I 1.jpg", "I 1.jpg"),
        ("http://a.org/x/I%201.jpg?size=2#top", "I 1.jpg"),
        ("100%.jpg", "100%.jpg"),
    ],
)
def test_file_names_of_urls_and_paths(url: str, name: str) -> None:
    assert file_name(url) == name
