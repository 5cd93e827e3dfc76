"""The page of pairs: its buttons, whatever the browser sends, and its drawings by SHA-256 alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from copies_of_three import three_images
from starlette.testclient import TestClient

from skindx.data.copies.copy_records import Pair, read_answers, write_answer
from skindx.review.answer_review import CopyReview, reviewing_copies
from skindx.ui.annotator.question_pages import CopyController
from skindx.ui.annotator.review_canvas import PairImages


@pytest.fixture
def pairs(tmp_path: Path) -> list[Pair]:
    return three_images(tmp_path)


@pytest.fixture
def review(pairs: list[Pair], tmp_path: Path) -> Iterator[CopyReview]:
    with reviewing_copies(tmp_path, "me") as review:
        yield review


def test_uncertain_pairs_come_first_and_answers_are_on_disk(
    review: CopyReview, pairs: list[Pair]
) -> None:
    controller = CopyController(review)
    key, shown, said = controller.open()
    assert key == "-".join(pairs[0])
    assert f"/pairs/{key}.jpg" in shown
    assert "Pair 1 of 2: uncertain, not answered yet" in said
    key, shown, said = controller.different(key)
    assert "Saved: different. Pair 2 of 2: verified" in said
    assert "&lt;b&gt;wart" in shown
    assert read_answers(review.dataset)[pairs[0]].verdict == "different"
    key, _, said = controller.undo(key)
    assert (key, read_answers(review.dataset)) == ("-".join(pairs[0]), {})
    assert "Undone." in said
    assert "nothing was answered" in controller.undo(key)[2].lower()


def test_undo_gives_the_earlier_answer_back_to_who_gave_it(
    pairs: list[Pair], tmp_path: Path
) -> None:
    write_answer(tmp_path, *pairs[0], "same", "somebody else")
    before = read_answers(tmp_path)
    with reviewing_copies(tmp_path, "me") as review:
        CopyController(review).different("-".join(pairs[0]))
        assert read_answers(tmp_path)[pairs[0]].by == "me"
        review.undo()
    assert read_answers(tmp_path) == before


@pytest.mark.parametrize("key", ["", "x", None, 7, "../../etc/passwd", f"{'a' * 64}-{'b' * 64}"])
def test_a_key_that_is_not_here_writes_nothing(review: CopyReview, key: object) -> None:
    said = CopyController(review).same(key)[2]
    assert 'role="alert"' in said
    assert "no such pair" in said
    assert read_answers(review.dataset) == {}


def test_drawings_are_given_by_pair_alone(review: CopyReview, pairs: list[Pair]) -> None:
    async def nothing(scope: object, receive: object, send: object) -> None:
        raise AssertionError("another layer was asked")

    client = TestClient(PairImages(nothing, review))
    answer = client.get(f"/pairs/{'-'.join(pairs[0])}.jpg")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "image/jpeg"
    assert answer.headers["cache-control"] == "no-store"
    first = pairs[0][0]
    for path in (f"/pairs/{first}-{first}.jpg", "/pairs/x.jpg", f"/pairs/{first}-{'0' * 64}.jpg"):
        assert client.get(path).status_code == 404
