"""Run the annotator on this machine alone, until Ctrl+C or SIGTERM."""

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from skindx.data.boxes.review import reviewing
from skindx.system import go_offline, require_extra
from skindx.ui.listening import LOOPBACK, check_free, gradio_options, stoppable, uploads_folder

if TYPE_CHECKING:
    from fastapi import FastAPI

HOST = "127.0.0.1"


def serve(dataset: Path, by: str, *, port: int = 7861, open_browser: bool = False) -> None:
    """Serve the annotator; the dataset is this reviewer's until it ends.

    Raises UserError for no dataset, for one that somebody else works on, for a port that is taken,
    and without the extra `app`.
    """
    go_offline()
    require_extra("app", "gradio", "gradio_image_annotation", purpose="the annotator")
    check_free(HOST, port)
    with reviewing(dataset, by) as review, uploads_folder(), stoppable():
        from gradio_image_annotation import image_annotator
        from starlette.middleware import Middleware
        from starlette.middleware.trustedhost import TrustedHostMiddleware

        from skindx.ui.annotator.component import ComponentFiles
        from skindx.ui.annotator.images import ReviewImages
        from skindx.ui.annotator.page import asset, build_annotator
        from skindx.ui.guard import Guard
        from skindx.ui.headers import Headers

        _reach_itself_directly()
        page = build_annotator(review)
        middleware = [
            # A site elsewhere must not be this page under a name of its own.
            Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"]),
            Middleware(Headers),
            Middleware(ComponentFiles, component=image_annotator),
            Middleware(Guard),
            Middleware(ReviewImages, review=review),
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
    print(f"{review.looked_at} of {len(review.order)} images of {dataset} are looked at.")


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
