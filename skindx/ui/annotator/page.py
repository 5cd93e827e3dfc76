"""The annotator's page: one image, its boxes, and save, skip, back, undo."""

from importlib import resources
from typing import TYPE_CHECKING, Any

from skindx.core.machine import go_offline
from skindx.data.boxes.review import Review
from skindx.ui.annotator.review_controller import ReviewController

if TYPE_CHECKING:
    import gradio as gr

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
    """Return the page; `skindx.ui.annotator.serve` shows it."""
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
