"""The page of flagged images: one image, and whether it shows skin."""

import html
from typing import TYPE_CHECKING

from skindx.data.answer_review import SkinReview
from skindx.ui.annotator.answers_page import AnswerController, Shown, build_answers_page
from skindx.ui.annotator.images import address
from skindx.ui.annotator.names import Names

if TYPE_CHECKING:
    import gradio as gr

_HELP = """
<h1>Does this show skin?</h1>
<p>Answer Skin where the image shows human skin, hair, nails or a mucous membrane, whatever lies
around it: the next build keeps it and no longer flags it. Answer Not skin for a document, a
screenshot without a photo, a drawing, a scene or noise: the next build leaves it out, and its near
duplicates.</p>
<p>Skin does not mean that the image may be published: <code>decisions.csv</code> says that.</p>
"""


class SkinController(AnswerController[str]):
    """Actions of the buttons."""

    def __init__(self, review: SkinReview) -> None:
        super().__init__(review)
        self.review = review
        labels = {image.label for image in review.images.values()}
        self.names = Names.of(review.dataset, tuple(sorted(labels)))

    def skin(self, key: object) -> Shown:
        """Write that the image shows skin, and show the next one."""
        return self.save(key, "skin")

    def no_skin(self, key: object) -> Shown:
        """Write that it does not, and show the next one."""
        return self.save(key, "not skin")

    def asked(self, key: object) -> str:
        return self.review.record(str(key)).sha256

    def key(self, asked: str) -> str:
        return asked

    def view(self, asked: str) -> str:
        caption = html.escape(self.names.name(self.review.record(asked).label))
        return (
            f'<figure class="sx-pair sx-one"><img src="{address(asked)}" alt="{caption}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )

    def facts(self, asked: str) -> str:
        review, image = self.review, self.review.record(asked)
        answer = review.said(asked)
        state = f"answered: {answer.verdict}" if answer else "not answered yet"
        why = f"{image.detail[:1].upper()}{image.detail[1:]}. " if image.detail else ""
        place = "" if image.kept else ", not in the dataset"
        return (
            f"Image {review.place(asked) + 1} of {len(review.order)}{place}: {state}. {why}"
            f"{review.answered} answered."
        )


def build_skin_page(review: SkinReview) -> "gr.Blocks":
    """Return the page; `skindx.ui.annotator.serve` shows it."""
    verdicts = {"skin": "Skin", "no_skin": "Not skin"}
    return build_answers_page(SkinController(review), "skindx annotate: skin", _HELP, verdicts)
