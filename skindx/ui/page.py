"""The diagnosis page: upload a picture, read what to do next and what it may be."""

import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skindx.diagnosis.case import Case
from skindx.diagnosis.diagnose import answer, read_picture
from skindx.diagnosis.predictor import Predictor
from skindx.errors import UserError
from skindx.offline import go_offline
from skindx.ui.html import figure_html, problem_html, result_html, top_html, waiting_html
from skindx.ui.serve import serve

if TYPE_CHECKING:
    import gradio as gr

__all__ = ["build_page", "serve"]

log = logging.getLogger(__name__)

UPLOAD_LIFE_S = 300
"""A picture is deleted as soon as it was looked at; one that nobody asked about, after this."""

_PRIVACY = (
    "Your picture is used for this answer alone: it is deleted from the server as soon as the "
    "answer is there, and never stored, logged or sent elsewhere."
)
_FAILED = "Something went wrong on the server; try again, or tell the person who runs this page."


def build_page(predictor: Predictor) -> "gr.Blocks":
    """Return the page; `skindx.ui.serve` shows it."""
    go_offline()
    import gradio as gr

    with gr.Blocks(
        title="skindx", analytics_enabled=False, delete_cache=(60, UPLOAD_LIFE_S)
    ) as page:
        gr.HTML(top_html(), elem_id="sx-top")
        with gr.Row(elem_id="sx-columns"):
            with gr.Column(scale=5, min_width=300):
                upload = gr.Image(
                    label="Photo of the skin",
                    sources=["upload", "webcam", "clipboard"],
                    webcam_options=gr.WebcamOptions(
                        mirror=False, constraints={"video": {"facingMode": "environment"}}
                    ),
                    buttons=[],
                    height=380,
                    elem_id="sx-upload",
                )
                figure = gr.HTML(visible=False, elem_id="sx-figure")
                another = gr.Button("Look at another picture", visible=False, elem_id="sx-another")
                gr.HTML(f'<p class="sx-small">{_PRIVACY}</p>')
            with gr.Column(scale=7, min_width=320):
                result = gr.HTML(waiting_html(), elem_id="sx-result")

        def look(file: dict[str, Any] | None) -> dict[Any, Any]:
            if file is None:
                return {}
            try:
                shown, said = diagnose_upload(predictor, Path(file["path"]))
            except UserError as error:
                return {upload: gr.update(value=None), result: problem_html(str(error))}
            except Exception:
                log.exception("a picture could not be diagnosed")
                return {upload: gr.update(value=None), result: problem_html(_FAILED)}
            return {
                upload: gr.update(value=None, visible=False),
                figure: gr.update(value=shown, visible=True),
                another: gr.update(visible=True),
                result: said,
            }

        def begin_again() -> dict[Any, Any]:
            return {
                upload: gr.update(value=None, visible=True),
                figure: gr.update(value="", visible=False),
                another: gr.update(visible=False),
                result: waiting_html(),
            }

        def forget(request: gr.Request) -> None:
            # Gradio remembers what a tab shows, picture included, long after the tab is closed.
            page.state_holder.session_data.pop(request.session_hash, None)

        shows = [upload, figure, another, result]
        # Without preprocessing: Gradio would open the file itself, without any of our limits.
        upload.input(
            look, upload, shows, preprocess=False, concurrency_limit=1, api_visibility="private"
        )
        another.click(begin_again, None, shows, api_visibility="private")
        page.unload(forget)
    return page


def diagnose_upload(predictor: Predictor, path: Path) -> tuple[str, str]:
    """Return the picture and the answer as HTML; the uploaded file is deleted in any case.

    Raises UserError for a picture that cannot be diagnosed.
    """
    try:
        answered = answer(predictor, Case((read_picture(path),)))
        shown = figure_html(answered.diagnosis, answered.views[0].jpeg)
        return shown, result_html(answered.diagnosis, predictor.bundle.metrics())
    finally:
        path.unlink(missing_ok=True)
        with suppress(OSError):  # the folder is named by the picture's hash: it tells which it was
            path.parent.rmdir()
