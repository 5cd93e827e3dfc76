import json
from pathlib import Path

import numpy as np
import pytest

from skindx.core.errors import UserError
from skindx_bench.data import second_photos
from skindx_bench.data.second_photos import HALVES, Photo, photos_of
from skindx_bench.subjects import run_bench

ROWS = [
    *((f"{lesion}-{at}", lesion, "nv") for lesion in "ABCDEFGH" for at in range(2)),
    *((f"{lesion}-0", lesion, "nv") for lesion in "IJKLMNOP"),
    ("Q-0", "Q", "mel"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for image, _, _ in ROWS:
        (tmp_path / "images" / f"{image}.jpg").write_bytes(image.encode())
    rows = "".join(f"{','.join(row)},0.25\n" for row in ROWS)
    (tmp_path / "index.csv").write_text(f"image,lesion_id,dx,mask_area_share\n{rows}")
    return tmp_path


def test_a_lesion_is_in_one_half_with_all_its_photos(folder: Path) -> None:
    halves = [photos_of(folder, half, 99, 99, None) for half in HALVES]
    lesions = [{photo.lesion for photo in half} for half in halves]
    assert lesions[0] | lesions[1] == set("ABCDEFGHIJKLMNOP")  # Q is of a rarer class
    assert not lesions[0] & lesions[1]
    assert sum(map(len, halves)) == len(ROWS) - 1
    assert {photo.share for photo in halves[0]} == {0.25}
    some = photos_of(folder, "unseen", 2, 1, None)
    assert len(some) == 5
    assert {photo.name for photo in some} <= {photo.name for photo in halves[1]}


def test_ids_of_one_lesion_are_joined_by_a_table(folder: Path) -> None:
    same = folder / "same.csv"
    images = [photo.name for photo in photos_of(folder, "unseen", 2, 0, None)]
    lines = "".join(f"{image},x\n" for image in (*images, "of another dataset"))
    same.write_text(f"image,thing\n{lines}")
    photos = photos_of(folder, "unseen", 2, 0, same)
    assert [photo.name for photo in photos] == images
    assert len({photo.lesion for photo in photos}) == 1


def test_what_is_missing_is_named(folder: Path) -> None:
    (folder / "images" / "A-0.jpg").unlink()
    with pytest.raises(UserError, match=r"A-0\.jpg cannot be read"):
        _ = [photos_of(folder, half, 99, 99, None) for half in HALVES]
    (folder / "index.csv").write_text("image,dx\n")
    with pytest.raises(UserError, match="no column 'lesion_id'"):
        photos_of(folder, "unseen", 1, 1, None)
    with pytest.raises(UserError, match="cannot be read as a table"):
        photos_of(folder / "nowhere", "unseen", 1, 1, None)


def test_each_pair_is_followed_to_the_stage_that_loses_it() -> None:
    lesions, labels = "AABBCCD", ("nv", "nv", "nv", "nv", "mel", "mel", "nv")
    shares = (0.1, 0.1, 0.1, 0.4, 0.1, 0.2, 0.1)
    rows = enumerate(zip(lesions, labels, shares, strict=True))
    photos = [Photo(str(at), *row, b"") for at, row in rows]
    yes, no = True, False
    followed = second_photos.Followed(
        np.array([[0, 1], [2, 3], [4, 5]]),
        before_P=np.array([yes, no, no]),
        voted_P=np.array([yes, no, no]),
        candidate_P=np.array([yes, yes, no]),
        acceptable_P=np.array([yes, yes, yes]),
        aligned_P=np.array([yes, yes, yes]),
        joined_P=np.array([yes, yes, no]),
        joined_before_P=np.array([no, yes, no]),
        false=((0, 6), (1, 4)),
        verified=9,
        minutes=1.0,
    )
    figures = second_photos._figures(photos, followed)
    values = {name: figure.value for name, figure in figures.items()}
    assert values["recall"] == values["recall_joined"] == pytest.approx(2 / 3)
    assert values["recall_before"] == values["candidates_before"] == pytest.approx(1 / 3)
    assert values["recall_joined_before"] == pytest.approx(1 / 3)
    assert values["accepted_of_all"] == 1
    assert values["lost_no_candidate"] == pytest.approx(1 / 3)
    assert values["lost_no_points"] == values["lost_not_accepted"] == 0
    assert (values["recall_zoom_small"], values["recall_before_zoom_small"]) == (1, 1)
    assert (values["recall_zoom_large"], values["recall_before_zoom_large"]) == (1, 0)
    assert values["recall_zoom_middle"] == 0
    assert (values["false_links"], figures["false_links"].n) == (2, 21 - 3)
    # Of five photos of nevi ten pairs, two of them of one lesion; of two melanomas one, of one.
    assert (values["false_links_of_one_class"], figures["false_links_of_one_class"].n) == (1, 8)
    named = second_photos._notes(second_photos.Config(), photos, followed)[-1]
    assert named == "false link: 1 (nv, A) and 4 (mel, C)."


def test_a_painted_run_finds_its_second_photos(tmp_path: Path) -> None:
    run_bench("second-photos", tmp_path / "second.json", ["lesions=2", "others=1"])
    figures = json.loads((tmp_path / "second.json").read_text())["figures"]
    assert figures["recall"]["value"] == figures["recall_joined"]["value"] == 1
    assert figures["recall"]["n"] == 2
    assert figures["false_links"]["value"] == 0
    assert figures["pairs_verified"]["value"] >= 2
