"""The annotator's page: one image, its boxes, and save, skip, back, undo.

Its actions are safe for any input from the browser.
"""

import html
import logging
import threading
from collections.abc import Callable
from importlib import resources
from typing import TYPE_CHECKING, Any

from skindx.core.errors import UserError
from skindx.core.machine import go_offline
from skindx.data.box import Box
from skindx.review.box_review import Review
from skindx.ui.annotator.review_canvas import (
    Names,
    canvas_boxes,
    colours_of,
    drawn_boxes,
    image_address,
    image_in,
)

if TYPE_CHECKING:
    import gradio as gr


log = logging.getLogger(__name__)

Shown = tuple[Any, str]
"""The canvas's value, and what the page says."""

_FAILED = "Something went wrong here, and this image may not be saved; see the terminal."


class ReviewController:
    """The page's way to a review; one request at a time."""

    def __init__(self, review: Review) -> None:
        self.review = review
        self.names = Names.of(review.dataset, review.labels)
        self.colours = colours_of(self.names.all)
        self._one = threading.Lock()

    def open(self) -> Shown:
        """Show the first image that was not reviewed."""
        return self._answer(lambda: self._show(self.review.first), None)

    def save(self, canvas: object) -> Shown:
        """Keep the boxes, and show the next image."""

        def work() -> Shown:
            sha256 = image_in(canvas)
            record = self.review.record(sha256)
            size_wh = (record.width, record.height)
            before = self.names.shown(self.review.boxes(sha256))
            boxes = self.names.stored(drawn_boxes(canvas, before, size_wh))
            self.review.save(sha256, boxes)
            return self._show(self.review.step(sha256, 1), f"Saved: {_count(boxes)}.")

        return self._answer(work, canvas)

    def skip(self, canvas: object) -> Shown:
        """Show the next image; this one stays as it was."""
        return self._step(canvas, 1)

    def back(self, canvas: object) -> Shown:
        """Show the image before; this one stays as it was."""
        return self._step(canvas, -1)

    def undo(self, canvas: object) -> Shown:
        """Take back what was saved last, and show that image."""

        def work() -> Shown:
            last = self.review.undo()
            if last is None:
                raise UserError(
                    "nothing was saved since the page was opened, so there is nothing to undo."
                )
            return self._show(last, "Undone: this image has the boxes that it had before.")

        return self._answer(work, canvas)

    def _step(self, canvas: object, by: int) -> Shown:
        return self._answer(lambda: self._show(self.review.step(image_in(canvas), by)), canvas)

    def _answer(self, work: Callable[[], Shown], canvas: object) -> Shown:
        """Return what `work` shows; where it fails, the canvas stays as it was sent."""
        with self._one:
            try:
                return work()
            except UserError as error:
                text = str(error)
                return canvas, message_html(text[:1].upper() + text[1:], alert=True)
            except Exception:
                log.exception("an image could not be worked on")
                return canvas, message_html(_FAILED, alert=True)

    def _show(self, sha256: str, note: str = "") -> Shown:
        review = self.review
        record = review.record(sha256)
        size_wh = (record.width, record.height)
        boxes = canvas_boxes(self.names.shown(review.boxes(sha256)), size_wh, self.colours)
        total = len(review.order)
        lines = (
            note,
            f"Image {review.place(sha256) + 1} of {total} ({self.names.name(record.label)}): "
            f"{review.state(sha256)}. {review.looked_at} of {total} looked at.",
        )
        value = {"image": {"url": image_address(sha256)}, "boxes": boxes, "orientation": 0}
        return value, message_html(" ".join(filter(None, lines))) + _fitting(size_wh)


def _count(boxes: tuple[Box, ...]) -> str:
    if not boxes:
        return "looked at, no lesion"
    return f"{len(boxes)} box{'es' if len(boxes) > 1 else ''}"


def _fitting(size_wh: tuple[int, int]) -> str:
    """Return the style that lets annotator.css make the image as high as the window has room."""
    return f"<style>#sx-canvas {{ --sx-aspect: {size_wh[0] / size_wh[1]:.4f} }}</style>"


def message_html(text: str, *, alert: bool = False) -> str:
    """Return what a page of the annotator says; an alert is read out at once."""
    role = "alert" if alert else "status"
    return f'<p class="sx-message" role="{role}">{html.escape(text)}</p>'


BUTTONS = {"save": "Save and next", "skip": "Skip", "back": "Back", "undo": "Undo last save"}
"""A button's name is its element's id behind `sx-`; annotator.js has its key, annotator.css shows
that key where there is a keyboard."""

_HELP = """
<h1>Where is the lesion?</h1>
<p class="sx-keys">Draw a box with C, move and resize one with D, change its class with a double
click or E, remove it with Delete. The wheel enlarges, Space shows all again.</p>
<p class="sx-touch">Choose Draw and drag a finger over the lesion; choose Move to move or resize a
box. Remove and Class are for the box that was touched last.</p>
<p>An image that shows no lesion is saved without boxes: that is different from skipping it.</p>
"""


def build_annotator(review: Review) -> "gr.Blocks":
    """Return the page; `skindx.ui.annotator.annotator_server` shows it."""
    go_offline()
    import gradio as gr
    from gradio.data_classes import GradioRootModel
    from gradio_image_annotation import image_annotator

    class Raw(GradioRootModel):  # type: ignore[misc]
        root: Any

    controller = ReviewController(review)
    with gr.Blocks(title="skindx annotate", analytics_enabled=False) as page:
        gr.HTML(_HELP, elem_id="sx-help")
        message = gr.HTML(elem_id="sx-message")
        canvas = image_annotator(
            label_list=list(controller.colours),
            label_colors=list(controller.colours.values()),
            use_default_label=True,
            boxes_alpha=0.1,
            box_min_size=1,
            sources=[],
            show_label=False,
            show_download_button=False,
            show_share_button=False,
            show_clear_button=False,
            show_remove_button=True,
            elem_id="sx-canvas",
        )
        with gr.Row(elem_id="sx-buttons"):
            buttons = {
                name: gr.Button(
                    text, elem_id=f"sx-{name}", variant="primary" if name == "save" else "secondary"
                )
                for name, text in BUTTONS.items()
            }
        # Raw values both ways: the component would keep a copy of every image as a file, round
        # the boxes to whole pixels, and read whatever path the browser names.
        canvas.data_model = Raw
        raw = {"preprocess": False, "postprocess": False, "api_visibility": "private"}
        for name, button in buttons.items():
            button.click(
                getattr(controller, name), canvas, [canvas, message], concurrency_id="review", **raw
            )
        page.load(controller.open, None, [canvas, message], **raw)
    return page


def asset(name: str) -> str:
    """Return a text file that lies beside this one."""
    return resources.files("skindx.ui.annotator").joinpath(name).read_text(encoding="utf-8")
