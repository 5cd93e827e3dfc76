"""The dataset's images and the canvas's files over HTTP: no path ever comes from the browser.

Gradio has a route for the canvas's scripts and styles, which prints a line for every file that it
sends; ours stands before it, so that the terminal shows the annotator's messages alone.
"""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.answer_review import CopyReview, SkinReview
from skindx.data.publish.gallery_tiles import draw_pair
from skindx.data.stored_image import read_image
from skindx.diagnosis.photo_checks import view_jpeg
from skindx.imaging.formats import DamagedImage
from skindx.review.box_review import Review
from skindx.ui.annotator.canvas import shown_size
from skindx.ui.http.asgi import App, Message, Receive, Send, respond


class ComponentFiles:
    """ASGI middleware that answers for the files of one custom component, and of no other."""

    def __init__(self, app: App, component: Any) -> None:
        """Take the component's class, whose `templates` lie beside its module."""
        import inspect

        from starlette.staticfiles import StaticFiles

        self.app = app
        self._prefix = f"/gradio_api/custom_component/{component.get_component_class_id()}/client/"
        self._files = StaticFiles(directory=Path(inspect.getfile(component)).parent / "templates")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Send the file that is asked for, 404 for one that is not there."""
        if scope["type"] != "http" or not scope["path"].startswith(self._prefix):
            await self.app(scope, receive, send)
            return
        from starlette.exceptions import HTTPException

        within = {**scope, "path": "/" + scope["path"].removeprefix(self._prefix), "root_path": ""}
        try:
            await self._files(within, receive, send)
        except HTTPException as error:
            await respond(send, error.status_code, b"not found")


log = logging.getLogger(__name__)

_ROUTE = re.compile(r"/images/([0-9a-f]{64})\.jpg")
_PAIR = re.compile(r"/pairs/([0-9a-f]{64})-([0-9a-f]{64})\.jpg")
_PAIR_SIDE = 420
"""Pixels of the longer side of each image in a drawing of two."""


def image_address(sha256: str) -> str:
    """Return where the page finds an image."""
    return f"/images/{sha256}.jpg"


class ReviewImages:
    """ASGI middleware that answers for the images of a review."""

    def __init__(self, app: App, review: Review | SkinReview) -> None:
        self.app, self.review = app, review

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/images/"):
            await self.app(scope, receive, send)
            return
        await _respond(self._jpeg, scope, receive, send)

    def _jpeg(self, path: str) -> bytes | None:
        asked = _ROUTE.fullmatch(path)
        if asked is None:
            return None
        try:
            record = self.review.record(asked[1])
            return _jpeg_as_shown(read_image(self.review.dataset, record))
        except (UserError, OSError, DamagedImage) as error:
            log.warning("image %s cannot be shown: %s", asked[1][:12], error)
            return None


class PairImages:
    """ASGI middleware that answers for the drawings of pairs."""

    def __init__(self, app: App, review: CopyReview) -> None:
        self.app, self.review = app, review

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/pairs/"):
            await self.app(scope, receive, send)
            return
        await _respond(self._jpeg, scope, receive, send)

    def _jpeg(self, path: str) -> bytes | None:
        asked = _PAIR.fullmatch(path)
        if asked is None:
            return None
        try:
            pair = self.review.pair(asked[1], asked[2])
            first_HW3, second_HW3 = (
                read_image(self.review.dataset, record) for record in self.review.images(pair)
            )
            row = self.review.rows[pair]
            return view_jpeg(draw_pair(first_HW3, second_HW3, row.transform, _PAIR_SIDE))
        except (UserError, OSError, DamagedImage) as error:
            log.warning("pair %s cannot be shown: %s", path[7:19], error)
            return None


async def _respond(
    jpeg_of: Callable[[str], bytes | None], scope: Message, receive: Receive, send: Send
) -> None:
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import Response

    jpeg = await run_in_threadpool(jpeg_of, scope["path"])
    headers = {"cache-control": "no-store"}
    if jpeg is None:
        response = Response("not found", 404, headers)
    else:
        response = Response(jpeg, 200, headers, media_type="image/jpeg")
    await response(scope, receive, send)


def _jpeg_as_shown(pixels_HWC: NDArray[np.uint8]) -> bytes:
    import cv2

    height, width = pixels_HWC.shape[:2]
    larger_wh = shown_size((width, height))
    if larger_wh > (width, height):
        pixels_HWC = cv2.resize(pixels_HWC, larger_wh, interpolation=cv2.INTER_CUBIC)
    return view_jpeg(pixels_HWC)
