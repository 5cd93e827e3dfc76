"""Run the annotator on this machine alone, until Ctrl+C or SIGTERM."""

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skindx.core.machine import go_offline, require_extra
from skindx.review.answer_review import AnswerReview, reviewing_copies, reviewing_skin
from skindx.review.box_review import reviewing
from skindx.ui.page_basics import LOOPBACK, check_free, gradio_options, stoppable, uploads_folder

if TYPE_CHECKING:
    import gradio as gr
    from fastapi import FastAPI
    from starlette.middleware import Middleware


HOST = "127.0.0.1"


def serve(dataset: Path, by: str, *, port: int = 7861, open_browser: bool = False) -> None:
    """Serve the annotator of boxes; the dataset is this reviewer's until it ends.

    Raises UserError for no dataset, for one in use by another process, for a port that is taken,
    and without the extra `app`.
    """
    _check(port)
    with reviewing(dataset, by) as review:
        from gradio_image_annotation import image_annotator
        from starlette.middleware import Middleware

        from skindx.ui.annotator.box_page import build_annotator
        from skindx.ui.annotator.review_canvas import ComponentFiles, ReviewImages

        layers = [
            Middleware(ComponentFiles, component=image_annotator),
            Middleware(ReviewImages, review=review),
        ]
        _run(build_annotator(review), layers, port, open_browser)
    print(f"{review.looked_at} of {len(review.order)} images of {dataset} are looked at.")


def serve_copies(dataset: Path, by: str, *, port: int = 7861, open_browser: bool = False) -> None:
    """Serve the page of pairs that may be copies; raises UserError as `serve` does."""
    _check(port)
    with reviewing_copies(dataset, by) as review:
        from skindx.ui.annotator.question_pages import build_copies_page
        from skindx.ui.annotator.review_canvas import PairImages

        page = build_copies_page(review)
        _ask(page, review, PairImages, f"pairs of {dataset}", port=port, open_browser=open_browser)


def serve_skin(dataset: Path, by: str, *, port: int = 7861, open_browser: bool = False) -> None:
    """Serve the page of images that may show no skin; raises UserError as `serve` does."""
    _check(port)
    with reviewing_skin(dataset, by) as review:
        from skindx.ui.annotator.question_pages import build_skin_page
        from skindx.ui.annotator.review_canvas import ReviewImages

        page = build_skin_page(review)
        _ask(
            page,
            review,
            ReviewImages,
            f"flagged images of {dataset}",
            port=port,
            open_browser=open_browser,
        )


def _ask(
    page: "gr.Blocks",
    review: AnswerReview[Any],
    images: Any,
    what: str,
    *,
    port: int,
    open_browser: bool,
) -> None:
    """Serve a page of questions with its images, and say at the end what was answered."""
    from starlette.middleware import Middleware

    _run(page, [Middleware(images, review=review)], port, open_browser)
    print(
        f"{review.answered} of {len(review.order)} {what} are answered; the next `skindx build` "
        f"obeys them."
    )


def _check(port: int) -> None:
    go_offline()
    require_extra("app", "gradio", "gradio_image_annotation", purpose="the annotator")
    check_free(HOST, port)


def _run(page: "gr.Blocks", layers: "list[Middleware]", port: int, open_browser: bool) -> None:
    """Show a page until Ctrl+C or SIGTERM, with `own` layers inside the guarding ones."""
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from skindx.ui.annotator.box_page import asset
    from skindx.ui.http.browser_rules import Headers
    from skindx.ui.http.guard import Guard

    with uploads_folder(), stoppable():
        _reach_itself_directly()
        *components, images = layers
        middleware = [
            # A site elsewhere must not be this page under a name of its own.
            Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"]),
            Middleware(Headers),
            *components,
            Middleware(Guard),
            images,
        ]
        _, url, _ = page.launch(
            server_name=HOST,
            server_port=port,
            inbrowser=open_browser,
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            max_file_size=1,
            **gradio_options(),
            css=asset("annotator.css"),
            head=f"<script>{asset('annotator.js')}</script>",
            app_kwargs={"middleware": middleware, "openapi_url": None},
        )
        _answer_no_other_origin(page.app)
        print(f"skindx annotate is at {url} (Ctrl+C stops it).", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            pass
        finally:
            page.close(verbose=False)


def _answer_no_other_origin(app: "FastAPI") -> None:
    """Take away Gradio's layer that lets pages of any other port of this machine read answers.

    It lies around all of ours, so `Headers` cannot take its headers away here.
    """
    from gradio.route_utils import CustomCORSMiddleware

    app.user_middleware = [
        layer for layer in app.user_middleware if layer.cls is not CustomCORSMiddleware
    ]
    app.middleware_stack = app.build_middleware_stack()


def _reach_itself_directly() -> None:
    """Keep Gradio's question to its own server, whether it is up, from going through a proxy."""
    for variable in ("NO_PROXY", "no_proxy"):
        known = os.environ.get(variable, "")
        os.environ[variable] = ",".join(filter(None, (known, *LOOPBACK)))
