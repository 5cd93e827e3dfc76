"""The page of flagged images: its buttons, whatever the browser sends, and images by SHA-256."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from flagged_images import DETAIL, flagged_images
from starlette.testclient import TestClient

from skindx.core.errors import UserError
from skindx.data.decisions import SKIN_ANSWERS, read_skin_answers, undecided, write_skin_answer
from skindx.data.manifest import write_issues
from skindx.review.answer_review import SkinReview, reviewing_skin
from skindx.ui.annotator.question_pages import SkinController
from skindx.ui.annotator.review_canvas import ReviewImages


@pytest.fixture
def shas(tmp_path: Path) -> list[str]:
    return flagged_images(tmp_path)


@pytest.fixture
def review(shas: list[str], tmp_path: Path) -> Iterator[SkinReview]:
    with reviewing_skin(tmp_path, "me") as review:
        yield review


def test_the_least_sure_come_first_and_answers_are_on_disk(
    review: SkinReview, shas: list[str]
) -> None:
    controller = SkinController(review)
    key, shown, said = controller.open()
    assert list(review.order) == shas
    assert key == shas[0]
    assert f"/images/{key}.jpg" in shown
    assert "&lt;b&gt;wart" in shown
    assert "Image 1 of 3: not answered yet. Unusual: 7.5 by a net. 0 answered." in said
    key, _, said = controller.skin(key)
    assert "Saved: skin. Image 2 of 3" in said
    assert DETAIL.capitalize() in said
    key, _, said = controller.no_skin(key)
    assert "Image 3 of 3, not in the dataset: not answered yet. Flat colours." in said
    answers = read_skin_answers(review.dataset)
    assert {sha: (a.verdict, a.by) for sha, a in answers.items()} == {
        shas[0]: ("skin", "me"),
        shas[1]: ("not skin", "me"),
    }
    key, _, said = controller.undo(key)
    assert key == shas[1]
    assert read_skin_answers(review.dataset).keys() == {shas[0]}


def test_an_answer_settles_what_waits_and_no_flag_for_privacy(
    shas: list[str], tmp_path: Path
) -> None:
    reasons = ("not-skin", "off-topic", "face")
    before = undecided(tmp_path, reasons)
    assert len(before) == 3
    for sha256 in before:
        write_skin_answer(tmp_path, sha256, "skin", "me")
    left = undecided(tmp_path, reasons)
    assert {flag.reason for flags in left.values() for flag in flags} == {"face"}


def test_answered_images_come_last_and_stay_in_the_walk(shas: list[str], tmp_path: Path) -> None:
    write_skin_answer(tmp_path, shas[0], "not skin", "somebody")
    with reviewing_skin(tmp_path, "me") as review:
        assert list(review.order) == [*shas[1:], shas[0]]
        assert review.first == shas[1]
        assert review.answered == 1


@pytest.mark.parametrize("key", ["", "x", None, 7, "../../etc/passwd", "a" * 64])
def test_a_key_that_is_not_here_writes_nothing(review: SkinReview, key: object) -> None:
    said = SkinController(review).skin(key)[2]
    assert 'role="alert"' in said
    assert "No such image" in said
    assert read_skin_answers(review.dataset) == {}


def test_images_are_given_that_are_asked_about_alone(
    review: SkinReview, shas: list[str], tmp_path: Path
) -> None:
    async def nothing(scope: object, receive: object, send: object) -> None:
        raise AssertionError("another layer was asked")

    client = TestClient(ReviewImages(nothing, review))
    for sha256 in shas:
        assert client.get(f"/images/{sha256}.jpg").headers["content-type"] == "image/jpeg"
    other = {file.stem for file in (tmp_path / "store").glob("*/*")} - set(shas)
    assert len(other) == 1
    for sha256 in (*other, "0" * 64):
        assert client.get(f"/images/{sha256}.jpg").status_code == 404


def test_nothing_flagged_is_one_sentence(shas: list[str], tmp_path: Path) -> None:
    (tmp_path / "flags.parquet").unlink()
    write_issues(tmp_path, [])
    with (
        pytest.raises(UserError, match="no images that are flagged"),
        reviewing_skin(tmp_path, "me"),
    ):
        pass


def test_a_wrong_verdict_is_named_by_its_line(shas: list[str], tmp_path: Path) -> None:
    (tmp_path / SKIN_ANSWERS).write_text(f"sha256,verdict\n{shas[0]},skin\n{shas[1]},perhaps\n")
    with pytest.raises(UserError, match=r"line 3: the verdict 'perhaps'"):
        read_skin_answers(tmp_path)
