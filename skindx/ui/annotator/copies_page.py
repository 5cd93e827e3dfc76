"""The page of pairs: two images side by side, and whether they show the same."""

import html
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skindx.data.copies.copy import ACCEPT
from skindx.data.copies.records import Pair
from skindx.data.copies.review import CopyReview
from skindx.data.manifest import Record
from skindx.errors import UserError
from skindx.system import go_offline
from skindx.ui.annotator.names import Names
from skindx.ui.annotator.review_controller import message_html

if TYPE_CHECKING:
    import gradio as gr

log = logging.getLogger(__name__)

BUTTONS = {
    "same": "Same",
    "different": "Different",
    "skip": "Skip",
    "back": "Back",
    "undo": "Undo",
}
"""A button's name is its element's id behind `sx-`; annotator.js has its key."""

_HELP = """
<h1>Do these show the same?</h1>
<p>The same photo (cut, turned, marked, photographed from a screen) or the same spot of the same
person in another photo: answer Same, and both stay in one split. Answer Different where only the
kind of lesion, a caption or a ruler is alike.</p>
<p>Left and middle: the two images. Right: the second one laid on the first. Rings mark the points
that agree.</p>
"""
_FAILED = "Something went wrong here, and this answer may not be saved; see the terminal."

Shown = tuple[str, str, str]
"""The pair's key, its images as HTML, and what the page says."""


class CopyController:
    """What the buttons do; one request at a time."""

    def __init__(self, review: CopyReview) -> None:
        self.review = review
        labels = {record.label for record in review.records.values()}
        self.names = Names.of(review.dataset, tuple(sorted(labels)))
        self._one = threading.Lock()

    def open(self) -> Shown:
        """Show the first pair without an answer."""
        return self._answer(lambda: self._show(self.review.first), "")

    def same(self, key: object) -> Shown:
        """Write that both show the same, and show the next pair."""
        return self._save(key, "same")

    def different(self, key: object) -> Shown:
        """Write that they do not, and show the next pair."""
        return self._save(key, "different")

    def skip(self, key: object) -> Shown:
        """Show the next pair; this one stays as it was."""
        return self._step(key, 1)

    def back(self, key: object) -> Shown:
        """Show the pair before; this one stays as it was."""
        return self._step(key, -1)

    def undo(self, key: object) -> Shown:
        """Take back the last answer, and show that pair."""

        def work() -> Shown:
            pair = self.review.undo()
            if pair is None:
                raise UserError("nothing was answered since the page was opened.")
            return self._show(pair, "Undone.")

        return self._answer(work, key)

    def _save(self, key: object, said: Any) -> Shown:
        def work() -> Shown:
            pair = self._pair(key)
            self.review.save(pair, said)
            return self._show(self.review.step(pair, 1), f"Saved: {said}.")

        return self._answer(work, key)

    def _step(self, key: object, by: int) -> Shown:
        return self._answer(lambda: self._show(self.review.step(self._pair(key), by)), key)

    def _pair(self, key: object) -> Pair:
        one, _, other = str(key).partition("-")
        return self.review.pair(one, other)

    def _answer(self, work: Callable[[], Shown], key: object) -> Shown:
        with self._one:
            try:
                return work()
            except UserError as error:
                text = str(error)
                said = message_html(text[:1].upper() + text[1:], alert=True)
            except Exception:
                log.exception("a pair could not be answered")
                said = message_html(_FAILED, alert=True)
            try:
                return self._show(self._pair(key), said=said)
            except UserError:
                return str(key), "", said

    def _show(self, pair: Pair, text: str = "", said: str = "") -> Shown:
        review, row = self.review, self.review.rows[pair]
        answer = review.said(pair)
        kind = "verified" if row.probability >= ACCEPT else "uncertain"
        state = f"answered: {answer.verdict}" if answer else f"{kind}, nobody answered yet"
        facts = (
            f"Pair {review.place(pair) + 1} of {len(review.order)}: {state}. Probability "
            f"{row.probability:.2f}, {row.inliers} points agree"
            f"{', mirrored' if row.mirrored else ''}. {review.answered} answered."
        )
        first, second = review.images(pair)
        return (
            "-".join(pair),
            _pair_html(pair, self._caption(first), self._caption(second)),
            said or message_html(" ".join(filter(None, (text, facts)))),
        )

    def _caption(self, record: Record) -> str:
        return f"{self.names.name(record.label)}, {record.split}"


def address(pair: Pair) -> str:
    """Return where the page finds a pair's drawing."""
    return f"/pairs/{pair[0]}-{pair[1]}.jpg"


def build_copies_page(review: CopyReview) -> "gr.Blocks":
    """Return the page; `skindx.ui.annotator.serve` shows it."""
    go_offline()
    import gradio as gr

    controller = CopyController(review)
    with gr.Blocks(title="skindx annotate: copies", analytics_enabled=False) as page:
        gr.HTML(_HELP, elem_id="sx-help")
        message = gr.HTML(elem_id="sx-message")
        key = gr.State("")
        pair = gr.HTML(elem_id="sx-pair")
        with gr.Row(elem_id="sx-buttons"):
            buttons = {
                name: gr.Button(
                    text, elem_id=f"sx-{name}", variant="primary" if name == "same" else "secondary"
                )
                for name, text in BUTTONS.items()
            }
        shown: list[Any] = [key, pair, message]
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


def _pair_html(pair: Pair, first: str, second: str) -> str:
    described = f"{first}; {second}; the second laid on the first"
    return (
        f'<figure class="sx-pair"><img src="{address(pair)}" alt="{html.escape(described)}">'
        f"<figcaption><span>{html.escape(first)}</span><span>{html.escape(second)}</span>"
        f"<span>the second laid on the first</span></figcaption></figure>"
    )
