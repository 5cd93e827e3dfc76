"""Serve the review page on this machine alone, until Ctrl+C or SIGTERM.

All addresses begin with a secret of this start, which only the terminal shows: other users of the
machine and other sites in the browser cannot know it. Images are given by their number alone, no
path ever comes from the browser, and data reach the page as JSON, never as a script. Copies are
drawn side by side, and the second laid on the first, with their shared points.
"""

import hmac
import json
import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skindx.core.errors import UserError
from skindx.core.machine import go_offline, require_extra
from skindx.data.answer_log import AnsweredMeanwhileError
from skindx.data.box import Box
from skindx.data.copies.describe import LONG_SIDE, describe
from skindx.data.copies.geometry import models_of
from skindx.data.layout import stored_file
from skindx.data.manifest import read_image
from skindx.data.report.dataset_report import renew_report
from skindx.imaging.hashes import grey
from skindx.imaging.image_formats import DamagedImage
from skindx.imaging.resize import small_jpeg
from skindx.imaging.sandboxed_images import decode_limited
from skindx.review.browse import DatasetBrowser
from skindx.review.dataset_review import DatasetReview, name_of, summary
from skindx.ui.http.asgi import App, Message, Receive, Send, header, read_body, respond
from skindx.ui.http.request_limits import ENCODED, PLAIN, is_encoded
from skindx.ui.page_basics import check_free, stoppable

# I = points that agree

_GAP = 8
_DOT = (20, 184, 166)


def draw_pair(
    first_HW3: NDArray[np.uint8],
    second_HW3: NDArray[np.uint8],
    transform: tuple[float, ...],
    side: int,
) -> NDArray[np.uint8]:
    """Return pixels_HW3 of three panels: the first, the second, the second laid on the first.

    `transform` is that of a pair: it maps the first to the second, in described pixels. `side` is
    the longer side of each image in the drawing, in pixels. Dots mark the points that agree.
    """
    import cv2

    first_HW3, second_HW3 = np.ascontiguousarray(first_HW3), np.ascontiguousarray(second_HW3)
    transform_23 = np.array(transform, np.float64).reshape(2, 3)
    left_HW3, right_HW3 = _fitted(first_HW3, side), _fitted(second_HW3, side)
    # From a pixel of the drawing to described pixels of the first, to those of the second image,
    # and to its stored pixels.
    shrink = LONG_SIDE / max(left_HW3.shape[:2])
    enlarge = max(second_HW3.shape[:2]) / LONG_SIDE
    linear_22 = enlarge * transform_23[:, :2] * shrink
    warp_23 = np.column_stack([linear_22, enlarge * transform_23[:, 2]])
    height, width = left_HW3.shape[:2]
    laid_HW3 = cv2.warpAffine(
        second_HW3, warp_23, (width, height), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    )
    for x, y in (
        (_points(first_HW3, second_HW3, transform_23) / shrink).round().astype(int).tolist()
    ):
        for panel_HW3 in (left_HW3, laid_HW3):
            cv2.circle(panel_HW3, (x, y), 3, _DOT, 1, cv2.LINE_AA)
    return _beside([left_HW3, right_HW3, laid_HW3])


def _fitted(image_HW3: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    import cv2

    height, width = image_HW3.shape[:2]
    scale = side / max(height, width)
    size_wh = (max(1, round(width * scale)), max(1, round(height * scale)))
    way = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    fitted_HW3: NDArray[np.uint8] = cv2.resize(image_HW3, size_wh, interpolation=way)
    return fitted_HW3


def _points(
    first_HW3: NDArray[np.uint8], second_HW3: NDArray[np.uint8], transform_23: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the points of the first image that agree, of the model nearest to the transform."""
    first, second = describe(grey(first_HW3)), describe(grey(second_HW3))
    corners_34 = np.array([[0, 1, 0, 1], [0, 0, 1, 1], [1 / LONG_SIDE] * 4]) * LONG_SIDE

    def distance(model: Any) -> float:
        return float(np.abs((model.transform_23 - transform_23) @ corners_34).max())

    models = models_of(first, second)
    if not models:
        return np.empty((0, 2))
    nearest = min(models, key=distance)
    points_I2: NDArray[np.float64] = nearest.from_I2
    return points_I2 if distance(nearest) < LONG_SIDE / 8 else np.empty((0, 2))


def _beside(panels: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    height = max(panel_HW3.shape[0] for panel_HW3 in panels)
    width = sum(panel_HW3.shape[1] for panel_HW3 in panels) + _GAP * (len(panels) - 1)
    drawing_HW3 = np.full((height, width, 3), 255, np.uint8)
    at = 0
    for panel_HW3 in panels:
        drawing_HW3[: panel_HW3.shape[0], at : at + panel_HW3.shape[1]] = panel_HW3
        at += panel_HW3.shape[1] + _GAP
    return drawing_HW3


HOST = "127.0.0.1"
THUMB_SIDE, IMAGE_SIDE, PAIR_SIDE = 144, 1280, 420
"""Pixels of the longer side; of each image in a drawing of two."""
_KEPT_THUMBS = 4000
"""Some 20 MB of memory."""
_MOST_BYTES = 200_000
_FILES = {
    "": ("review.html", "text/html; charset=utf-8"),
    "review.css": ("review.css", "text/css; charset=utf-8"),
    "shared.js": ("shared.js", "text/javascript; charset=utf-8"),
    "review.js": ("review.js", "text/javascript; charset=utf-8"),
    "browse": ("browse.html", "text/html; charset=utf-8"),
    "browse.js": ("browse.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_FAILED = "something went wrong, and this may not be saved; see the terminal."

log = logging.getLogger(__name__)


def serve(dataset: Path, by: str = "", *, reason: str = "", port: int = 7861) -> None:
    """Serve a dataset's review; `reason` is the one that the page begins with, "": all.

    Raises UserError for no dataset, for a port that is taken, and without the extra `app`.
    """
    go_offline()
    require_extra("serve", "starlette", "uvicorn", purpose="the review page")
    check_free(HOST, port)
    if by:
        by = name_of(by)
    review = DatasetReview(dataset)
    from skindx.ui.http.server import Listening, run

    token = secrets.token_urlsafe(16)
    address = f"http://{HOST}:{port}/{token}/"
    greeting = f"skindx review is at {address} (Ctrl+C stops it)."
    with stoppable():
        threading.Thread(target=_warm, args=(review,), daemon=True).start()
        app = build_app(review, token, by, reason)
        run(app, Listening(HOST, port), lambda: print(greeting, flush=True))
    renew_report(dataset)  # without the images that were withheld or removed
    print(f"{summary(review)} The next `skindx build` obeys them.")


def _warm(review: DatasetReview) -> None:
    """Load the compiled loops of drawings, which takes seconds, before the first pair is shown."""
    if review.pairs:
        coarse_HW3 = np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)
        noise_HW3 = coarse_HW3.repeat(8, 0).repeat(8, 1)  # with corners to compare
        draw_pair(noise_HW3, noise_HW3, (1.0, 0.0, 0.0, 0.0, 1.0, 0.0), 64)


def build_app(review: DatasetReview, token: str, by: str = "", reason: str = "") -> App:
    """Return the application, which answers for this host and under this secret alone."""
    from skindx.ui.http.browser_rules import HostCheck

    return HostCheck(_ReviewApp(review, token, {"by": by, "reason": reason}), HOST)


class _Answer(BaseModel):
    """What a page sends: an answer, or with `before` an undoing of one."""

    model_config = ConfigDict(extra="forbid")

    at: int = Field(ge=0)
    by: str = Field(max_length=200)
    revision: int = Field(ge=0)
    verdict: str = Field("", max_length=20)
    label: str = Field("", max_length=500)
    note: str = Field("", max_length=4000)
    boxes: list[tuple[float, float, float, float, str]] = Field(default=[], max_length=1000)
    question: str = Field("", max_length=20)
    before: int | None = Field(None, ge=0)


class _BrowseQuery(BaseModel):
    """What the browsing page asks for: places in the lists of classes, splits and sources."""

    model_config = ConfigDict(extra="forbid")

    label: int | None = Field(None, ge=0, lt=10**8)
    split: int | None = Field(None, ge=0, lt=10**8)
    source: int | None = Field(None, ge=0, lt=10**8)
    text: str = Field("", max_length=200)
    page: int = Field(0, ge=0, lt=10**8)


class _ReviewApp:
    def __init__(self, review: DatasetReview, token: str, start: dict[str, str]) -> None:
        self._review, self._token, self._start = review, token, start
        self._browser = DatasetBrowser(review)
        self._thumbs: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()
        # Apart: drawing a pair takes seconds at first, and the list waits for no drawing.
        self._decoding, self._drawing = (threading.BoundedSemaphore(most) for most in (4, 2))

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        token, _, path = scope["path"].removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            text = b"Open the address that the terminal shows: it has the secret of this start."
            await respond(send, 404, text, headers=_HEADERS)
        elif scope["method"] == "GET" and path in _FILES:
            name, kind = _FILES[path]
            file = resources.files(__package__).joinpath(name).read_bytes()
            await respond(send, 200, file, kind, _HEADERS)
        elif scope["method"] == "GET":
            await self._get(path, scope["query_string"].decode("latin-1"), send)
        elif is_encoded(scope):
            await respond(send, 415, ENCODED.encode(), headers=_HEADERS | PLAIN)
        elif scope["method"] == "POST" and path == "answer" and self._is_ours(scope):
            body = await read_body(receive, _MOST_BYTES)
            await self._json(send, lambda: self._write(body))
        else:
            await respond(send, 404, b"not found", headers=_HEADERS)

    def _is_ours(self, scope: Message) -> bool:
        """Tell whether a page of this server asks: its origin, and a type no form can send."""
        origin, host = header(scope, b"origin"), header(scope, b"host")
        ours = header(scope, b"content-type").partition(";")[0].strip() == "application/json"
        return ours and origin in ("", f"http://{host}")

    async def _get(self, path: str, query: str, send: Send) -> None:
        what, _, number = path.partition("/")
        at = int(number) if number.isascii() and number.isdigit() and len(number) < 9 else -1
        known = 0 <= at < len(self._review.items)
        if path == "state":
            await self._json(send, lambda: {**self._review.whole(), **self._start})
        elif path == "find":
            await self._json(send, lambda: self._find(query))
        elif what == "changes" and at >= 0:
            await self._json(send, lambda: self._review.changes(at))
        elif what == "item" and known:
            await self._json(send, lambda: self._review.detail(at))
        elif what in ("thumb", "image") and known:
            await self._image(send, lambda: (self._thumb if what == "thumb" else self._large)(at))
        else:
            await respond(send, 404, b"not found", headers=_HEADERS)

    async def _image(self, send: Send, make: Callable[[], bytes]) -> None:
        try:
            jpeg = await _threaded(make)
        except (UserError, OSError, DamagedImage) as error:
            log.warning("an image cannot be shown: %s", error)
            await respond(send, 404, b"not found", headers=_HEADERS)
            return
        await respond(send, 200, jpeg, "image/jpeg", _HEADERS)

    async def _json(self, send: Send, work: Callable[[], object]) -> None:
        try:
            status, answer = 200, await _threaded(work)
        except AnsweredMeanwhileError as error:
            status, answer = 409, {"error": str(error)}
        except UserError as error:
            status, answer = 400, {"error": str(error)}
        except Exception:
            log.exception("a request of the review page failed")
            status, answer = 500, {"error": _FAILED}
        data = json.dumps(answer, separators=(",", ":")).encode()
        await respond(send, status, data, "application/json", _HEADERS)

    def _find(self, query: str) -> object:
        try:
            asked = _BrowseQuery.model_validate(
                dict(parse_qsl(query, max_num_fields=9, errors="strict"))
            )
        except (ValidationError, ValueError):
            raise UserError(
                "this page was opened before the server was started again; reload the page."
            ) from None
        return self._browser.find(**asked.model_dump())

    def _write(self, body: bytes | None) -> object:
        try:
            sent = _Answer.model_validate_json(body or b"")
            boxes = [Box(*corners[:4], label=corners[4]) for corners in sent.boxes]
        except (ValidationError, ValueError):
            raise UserError(
                "the page sent data that the server cannot read; reload the page."
            ) from None
        if sent.before is None:
            changes = self._review.answer(
                sent.at,
                sent.verdict,
                sent.by,
                sent.revision,
                label=sent.label,
                note=sent.note,
                boxes=boxes,
            )
        else:
            question: Any = sent.question
            changes = self._review.undo(sent.at, question, sent.before, sent.by, sent.revision)
        return {"changes": changes}

    def _thumb(self, at: int) -> bytes:
        with self._lock:
            if at in self._thumbs:
                self._thumbs.move_to_end(at)
                return self._thumbs[at]
        file = stored_file(self._review.dataset, self._review.items[at].path)
        with self._decoding:
            pixels_HW3 = decode_limited(file.read_bytes(), at_least=(THUMB_SIDE, THUMB_SIDE))
            jpeg = small_jpeg(pixels_HW3, THUMB_SIDE)
        with self._lock:
            self._thumbs[at] = jpeg
            if len(self._thumbs) > _KEPT_THUMBS:
                self._thumbs.popitem(last=False)
        return jpeg

    def _large(self, at: int) -> bytes:
        review, item = self._review, self._review.items[at]
        if len(item.key) == 1:
            with self._decoding:
                data = stored_file(review.dataset, item.path).read_bytes()
                return small_jpeg(decode_limited(data), IMAGE_SIDE)
        with self._drawing:
            first_HW3, second_HW3 = (
                read_image(review.dataset, review.records[sha256]) for sha256 in item.key
            )
            transform = review.pairs[item.key].transform
            drawn_HW3 = draw_pair(first_HW3, second_HW3, transform, PAIR_SIDE)
            return small_jpeg(drawn_HW3, IMAGE_SIDE)


async def _threaded(work: Callable[[], Any]) -> Any:
    from starlette.concurrency import run_in_threadpool

    running: Awaitable[Any] = run_in_threadpool(work)
    return await running
