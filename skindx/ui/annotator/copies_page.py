"""The page of pairs: two images side by side, and whether they show the same."""

import html
from typing import TYPE_CHECKING

from skindx.data.answer_review import CopyReview
from skindx.data.copies.records import Pair
from skindx.data.copies.verify import ACCEPT
from skindx.data.manifest import Record
from skindx.ui.annotator.answers_page import AnswerController, Shown, build_answers_page
from skindx.ui.annotator.names import Names

if TYPE_CHECKING:
    import gradio as gr

_HELP = """
<h1>Do these show the same?</h1>
<p>The same photo (cut, turned, marked, photographed from a screen) or the same spot of the same
person in another photo: answer Same, and both stay in one split. Answer Different where only the
kind of lesion, a caption or a ruler is alike.</p>
<p>Left and middle: the two images. Right: the second one laid on the first. Rings mark the points
that agree.</p>
"""


class CopyController(AnswerController[Pair]):
    """Actions of the buttons."""

    def __init__(self, review: CopyReview) -> None:
        super().__init__(review)
        self.review = review
        labels = {record.label for record in review.records.values()}
        self.names = Names.of(review.dataset, tuple(sorted(labels)))

    def same(self, key: object) -> Shown:
        """Write that both show the same, and show the next pair."""
        return self.save(key, "same")

    def different(self, key: object) -> Shown:
        """Write that they do not, and show the next pair."""
        return self.save(key, "different")

    def asked(self, key: object) -> Pair:
        one, _, other = str(key).partition("-")
        return self.review.pair(one, other)

    def key(self, asked: Pair) -> str:
        return "-".join(asked)

    def view(self, asked: Pair) -> str:
        first, second = (self._caption(record) for record in self.review.images(asked))
        described = f"{first}; {second}; the second laid on the first"
        return (
            f'<figure class="sx-pair"><img src="{address(asked)}" alt="{html.escape(described)}">'
            f"<figcaption><span>{html.escape(first)}</span><span>{html.escape(second)}</span>"
            f"<span>the second laid on the first</span></figcaption></figure>"
        )

    def facts(self, asked: Pair) -> str:
        review, row = self.review, self.review.rows[asked]
        answer = review.said(asked)
        kind = "verified" if row.probability >= ACCEPT else "uncertain"
        state = f"answered: {answer.verdict}" if answer else f"{kind}, not answered yet"
        return (
            f"Pair {review.place(asked) + 1} of {len(review.order)}: {state}. Probability "
            f"{row.probability:.2f}, {row.inliers} points agree"
            f"{', mirrored' if row.mirrored else ''}. {review.answered} answered."
        )

    def _caption(self, record: Record) -> str:
        return f"{self.names.name(record.label)}, {record.split}"


def address(pair: Pair) -> str:
    """Return where the page finds a pair's drawing."""
    return f"/pairs/{pair[0]}-{pair[1]}.jpg"


def build_copies_page(review: CopyReview) -> "gr.Blocks":
    """Return the page; `skindx.ui.annotator.serve` shows it."""
    verdicts = {"same": "Same", "different": "Different"}
    return build_answers_page(CopyController(review), "skindx annotate: copies", _HELP, verdicts)
