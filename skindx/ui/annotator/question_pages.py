"""Pages that ask one question after the other: are two images copies, does an image show skin."""

import html
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from skindx.core.errors import UserError
from skindx.core.machine import go_offline
from skindx.data.copies.copy_records import Pair
from skindx.data.copies.verify import ACCEPT
from skindx.data.manifest import Record
from skindx.review.answer_review import AnswerReview, CopyReview, SkinReview
from skindx.ui.annotator.box_page import message_html
from skindx.ui.annotator.review_canvas import Names, image_address

if TYPE_CHECKING:
    import gradio as gr


log = logging.getLogger(__name__)

STEPS = {"skip": "Skip", "back": "Back", "undo": "Undo"}
"""A button's name is its element's id behind `sx-`; annotator.js has its key."""

_FAILED = "Something went wrong here, and this answer may not be saved; see the terminal."

Shown = tuple[str, str, str]
"""The question's key, what to look at as HTML, and what the page says."""

Question = TypeVar("Question")


class AnswerController(ABC, Generic[Question]):
    """Actions of the buttons; one request at a time. Classes of a page say what is asked."""

    def __init__(self, review: AnswerReview[Question]) -> None:
        self._walk = review
        self._one = threading.Lock()

    @abstractmethod
    def question(self, key: object) -> Question:
        """Return the question of a key, whatever the browser sent. Raises UserError."""

    @abstractmethod
    def key(self, question: Question) -> str:
        """Return what the page names a question by."""

    @abstractmethod
    def view(self, question: Question) -> str:
        """Return what to look at, as HTML."""

    @abstractmethod
    def facts(self, question: Question) -> str:
        """Say where in the walk this is, and what is known."""

    def open(self) -> Shown:
        """Show the first question without an answer."""
        return self._answer(lambda: self._show(self._walk.first), "")

    def save(self, key: object, verdict: str) -> Shown:
        """Write an answer, and show the next question."""

        def work() -> Shown:
            question = self.question(key)
            self._walk.save(question, verdict)
            return self._show(self._walk.step(question, 1), f"Saved: {verdict}.")

        return self._answer(work, key)

    def skip(self, key: object) -> Shown:
        """Show the next question; this one stays as it was."""
        return self._step(key, 1)

    def back(self, key: object) -> Shown:
        """Show the question before; this one stays as it was."""
        return self._step(key, -1)

    def undo(self, key: object) -> Shown:
        """Take back the last answer, and show its question."""

        def work() -> Shown:
            question = self._walk.undo()
            if question is None:
                raise UserError("nothing was answered since the page was opened.")
            return self._show(question, "Undone.")

        return self._answer(work, key)

    def _step(self, key: object, by: int) -> Shown:
        return self._answer(lambda: self._show(self._walk.step(self.question(key), by)), key)

    def _answer(self, work: Callable[[], Shown], key: object) -> Shown:
        with self._one:
            try:
                return work()
            except UserError as error:
                text = str(error)
                message = message_html(text[:1].upper() + text[1:], alert=True)
            except Exception:
                log.exception("a question could not be answered")
                message = message_html(_FAILED, alert=True)
            try:
                return self._show(self.question(key), message=message)
            except UserError:
                return str(key), "", message

    def _show(self, question: Question, text: str = "", message: str = "") -> Shown:
        words = " ".join(filter(None, (text, self.facts(question))))
        return self.key(question), self.view(question), message or message_html(words)


def build_answers_page(
    controller: AnswerController[Any], title: str, help_html: str, verdicts: Mapping[str, str]
) -> "gr.Blocks":
    """Return the page; `verdicts` are the methods that answer -> their buttons, the first filled.

    `skindx.ui.annotator.annotator_server` shows it.
    """
    go_offline()
    import gradio as gr

    with gr.Blocks(title=title, analytics_enabled=False) as page:
        gr.HTML(help_html, elem_id="sx-help")
        message = gr.HTML(elem_id="sx-message")
        key = gr.State("")
        view = gr.HTML(elem_id="sx-pair")
        with gr.Row(elem_id="sx-buttons"):
            buttons = {
                name: gr.Button(
                    text,
                    elem_id=f"sx-{name}",
                    variant="primary" if name == next(iter(verdicts)) else "secondary",
                )
                for name, text in {**verdicts, **STEPS}.items()
            }
        shown: list[Any] = [key, view, message]
        for name, button in buttons.items():
            button.click(
                getattr(controller, name),
                key,
                shown,
                concurrency_id="review",
                api_visibility="private",
            )
        page.load(controller.open, None, shown, api_visibility="private")
    return page


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

    def question(self, key: object) -> Pair:
        one, _, other = str(key).partition("-")
        return self.review.pair(one, other)

    def key(self, question: Pair) -> str:
        return "-".join(question)

    def view(self, question: Pair) -> str:
        first, second = (self._caption(record) for record in self.review.images(question))
        described = f"{first}; {second}; the second laid on the first"
        return (
            f'<figure class="sx-pair"><img src="{pair_address(question)}" '
            f'alt="{html.escape(described)}">'
            f"<figcaption><span>{html.escape(first)}</span><span>{html.escape(second)}</span>"
            f"<span>the second laid on the first</span></figcaption></figure>"
        )

    def facts(self, question: Pair) -> str:
        review, row = self.review, self.review.rows[question]
        answer = review.answer_to(question)
        kind = "verified" if row.probability >= ACCEPT else "uncertain"
        state = f"answered: {answer.verdict}" if answer else f"{kind}, not answered yet"
        return (
            f"Pair {review.place(question) + 1} of {len(review.order)}: {state}. Probability "
            f"{row.probability:.2f}, {row.inliers} points agree"
            f"{', mirrored' if row.mirrored else ''}. {review.answered} answered."
        )

    def _caption(self, record: Record) -> str:
        return f"{self.names.name(record.label)}, {record.split}"


def pair_address(pair: Pair) -> str:
    """Return where the page finds a pair's drawing."""
    return f"/pairs/{pair[0]}-{pair[1]}.jpg"


def build_copies_page(review: CopyReview) -> "gr.Blocks":
    """Return the page; `skindx.ui.annotator.annotator_server` shows it."""
    verdicts = {"same": "Same", "different": "Different"}
    return build_answers_page(CopyController(review), "skindx annotate: copies", _HELP, verdicts)


_SKIN_HELP = """
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

    def question(self, key: object) -> str:
        return self.review.record(str(key)).sha256

    def key(self, question: str) -> str:
        return question

    def view(self, question: str) -> str:
        caption = html.escape(self.names.name(self.review.record(question).label))
        return (
            f'<figure class="sx-pair sx-one"><img src="{image_address(question)}" alt="{caption}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )

    def facts(self, question: str) -> str:
        review, image = self.review, self.review.record(question)
        answer = review.answer_to(question)
        state = f"answered: {answer.verdict}" if answer else "not answered yet"
        why = f"{image.detail[:1].upper()}{image.detail[1:]}. " if image.detail else ""
        place = "" if image.kept else ", not in the dataset"
        return (
            f"Image {review.place(question) + 1} of {len(review.order)}{place}: {state}. {why}"
            f"{review.answered} answered."
        )


def build_skin_page(review: SkinReview) -> "gr.Blocks":
    """Return the page; `skindx.ui.annotator.annotator_server` shows it."""
    verdicts = {"skin": "Skin", "no_skin": "Not skin"}
    return build_answers_page(SkinController(review), "skindx annotate: skin", _SKIN_HELP, verdicts)
