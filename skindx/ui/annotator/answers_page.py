"""A page that asks one question after the other: what to look at, and buttons to answer."""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from skindx.core.errors import UserError
from skindx.core.machine import go_offline
from skindx.data.answer_review import AnswerReview
from skindx.ui.annotator.review_controller import message_html

if TYPE_CHECKING:
    import gradio as gr

log = logging.getLogger(__name__)

STEPS = {"skip": "Skip", "back": "Back", "undo": "Undo"}
"""A button's name is its element's id behind `sx-`; annotator.js has its key."""

_FAILED = "Something went wrong here, and this answer may not be saved; see the terminal."

Shown = tuple[str, str, str]
"""The question's key, what to look at as HTML, and what the page says."""

Asked = TypeVar("Asked")


class AnswerController(ABC, Generic[Asked]):
    """Actions of the buttons; one request at a time. Classes of a page say what is asked."""

    def __init__(self, review: AnswerReview[Asked]) -> None:
        self._walk = review
        self._one = threading.Lock()

    @abstractmethod
    def asked(self, key: object) -> Asked:
        """Return the question of a key, whatever the browser sent. Raises UserError."""

    @abstractmethod
    def key(self, asked: Asked) -> str:
        """Return what the page names a question by."""

    @abstractmethod
    def view(self, asked: Asked) -> str:
        """Return what to look at, as HTML."""

    @abstractmethod
    def facts(self, asked: Asked) -> str:
        """Say where in the walk this is, and what is known."""

    def open(self) -> Shown:
        """Show the first question without an answer."""
        return self._answer(lambda: self._show(self._walk.first), "")

    def save(self, key: object, verdict: str) -> Shown:
        """Write an answer, and show the next question."""

        def work() -> Shown:
            asked = self.asked(key)
            self._walk.save(asked, verdict)
            return self._show(self._walk.step(asked, 1), f"Saved: {verdict}.")

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
            asked = self._walk.undo()
            if asked is None:
                raise UserError("nothing was answered since the page was opened.")
            return self._show(asked, "Undone.")

        return self._answer(work, key)

    def _step(self, key: object, by: int) -> Shown:
        return self._answer(lambda: self._show(self._walk.step(self.asked(key), by)), key)

    def _answer(self, work: Callable[[], Shown], key: object) -> Shown:
        with self._one:
            try:
                return work()
            except UserError as error:
                text = str(error)
                said = message_html(text[:1].upper() + text[1:], alert=True)
            except Exception:
                log.exception("a question could not be answered")
                said = message_html(_FAILED, alert=True)
            try:
                return self._show(self.asked(key), said=said)
            except UserError:
                return str(key), "", said

    def _show(self, asked: Asked, text: str = "", said: str = "") -> Shown:
        words = " ".join(filter(None, (text, self.facts(asked))))
        return self.key(asked), self.view(asked), said or message_html(words)


def build_answers_page(
    controller: AnswerController[Any], title: str, help_html: str, verdicts: Mapping[str, str]
) -> "gr.Blocks":
    """Return the page; `verdicts` are the methods that answer -> their buttons, the first filled.

    `skindx.ui.annotator.serve` shows it.
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
