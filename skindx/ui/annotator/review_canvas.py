"""What a reviewer sees: images over HTTP, boxes in pixels of the image shown, names of labels.

No path ever comes from the browser. Gradio has a route for the canvas's scripts and styles, which
prints a line for every file that it sends; ours stands before it, so that the terminal shows the
annotator's messages alone.
"""

import dataclasses
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from skindx.core.errors import UserError
from skindx.data.box import Box, RawBox, boxed
from skindx.data.manifest import read_image
from skindx.data.publish.gallery_tiles import draw_pair
from skindx.diagnosis.photo_checks import view_jpeg
from skindx.imaging.image_formats import DamagedImage
from skindx.review.answer_review import CopyReview, SkinReview
from skindx.review.box_review import Review
from skindx.taxonomy import load_taxonomy
from skindx.ui.http.asgi import App, Message, Receive, Send, respond

LONGEST_SIDE = 1280
ROOM_WH = (1280, 600)
"""Pixels: smaller images are enlarged until they fill one side of this, which leaves room on a
screen for the buttons."""
# Dark enough for outlines to be seen on skin, and for white letters.
_COLOURS = ("#0f766e", "#b45309", "#6d28d9", "#be123c", "#1d4ed8", "#4d7c0f", "#a21caf", "#334155")
_UNMOVED = 1e-6
"""Pixels: what the browser's own scaling there and back rounds away."""

_Pixel = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


class _Drawn(BaseModel):
    """One box as the canvas sends it; it draws the image `scaleFactor` times as large."""

    label: str = Field(max_length=200)
    xmin: _Pixel
    ymin: _Pixel
    xmax: _Pixel
    ymax: _Pixel
    scaleFactor: float = Field(1.0, gt=0, le=100)

    def corners(self) -> tuple[float, ...]:
        return tuple(getattr(self, name) / self.scaleFactor for name in _CORNERS)


class _Shown(BaseModel):
    url: str


class _Canvas(BaseModel):
    image: _Shown
    boxes: list[_Drawn] = Field(max_length=1000)
    orientation: int = 0


def shown_size(size_wh: tuple[int, int]) -> tuple[int, int]:
    """Return width and height of an image as it is shown: small ones enlarged, large ones not.

    The canvas draws no image larger than it comes, however small it is on the screen.
    """
    room = min(ROOM_WH[0] / size_wh[0], ROOM_WH[1] / size_wh[1])
    scale = room if room > 1 else min(1.0, LONGEST_SIDE / max(size_wh))
    return max(1, round(size_wh[0] * scale)), max(1, round(size_wh[1] * scale))


def colours_of(labels: Sequence[str]) -> dict[str, str]:
    """Return label -> colour, as #rrggbb."""
    return {label: _COLOURS[at % len(_COLOURS)] for at, label in enumerate(labels)}


def canvas_boxes(
    boxes: Sequence[Box], size_wh: tuple[int, int], colours: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return boxes of a stored image of that size for the canvas."""
    return [
        dict(zip(_CORNERS, _shown(box, size_wh), strict=True))
        | {"label": box.label, "color": list(bytes.fromhex(colours[box.label][1:]))}
        for box in boxes
    ]


def drawn_boxes(value: object, before: Sequence[Box], size_wh: tuple[int, int]) -> tuple[Box, ...]:
    """Return what the canvas sends as boxes of the stored image.

    A box of `before` that was not moved keeps its coordinates exactly. Raises UserError for what
    is no canvas, for a turned image, and for a box without area inside the image.
    """
    canvas = _parsed(value)
    if canvas.orientation % 4:
        raise UserError("the image is turned; turn it upright again, then save.")
    known = {_shown(box, size_wh): box for box in before}
    raw = [_stored(box, known, size_wh) for box in canvas.boxes]
    image = boxed(size_wh, raw)
    if len(image.boxes) < len(raw):
        raise UserError("a box is empty or outside the image; draw it again or remove it.")
    return image.boxes


def image_in(value: object) -> str:
    """Return the SHA-256 in the address of the image that the canvas shows. Raises UserError."""
    return PurePosixPath(_parsed(value).image.url).stem


def _parsed(value: object) -> _Canvas:
    try:
        return _Canvas.model_validate(value)
    except ValidationError:
        raise UserError("the page sent boxes that cannot be read; load it again.") from None


def _shown(box: Box, size_wh: tuple[int, int]) -> tuple[float, ...]:
    width, height = shown_size(size_wh)
    x, y = width / size_wh[0], height / size_wh[1]
    return box.x1 * x, box.y1 * y, box.x2 * x, box.y2 * y


def _stored(drawn: _Drawn, known: dict[tuple[float, ...], Box], size_wh: tuple[int, int]) -> RawBox:
    corners = drawn.corners()
    for shown, box in known.items():
        if all(abs(a - b) < _UNMOVED for a, b in zip(corners, shown, strict=True)):
            return RawBox(box.x1, box.y1, box.x2, box.y2, drawn.label)
    width, height = shown_size(size_wh)
    x, y = size_wh[0] / width, size_wh[1] / height
    return RawBox(corners[0] * x, corners[1] * y, corners[2] * x, corners[3] * y, drawn.label)


TAXONOMY = "taxonomy.yaml"


class Names:
    """The name of each label of a dataset, and the label of each name."""

    def __init__(self, labels: Iterable[str], known: dict[str, str]) -> None:
        """Take names by label from `known`; a label without one is its own words.

        Where two labels have the same name, the label follows it in brackets.
        """
        plain = {label: known.get(label) or _words(label) for label in labels}
        names = list(plain.values())
        self._names = {
            label: f"{name} ({label})" if names.count(name) > 1 else name
            for label, name in plain.items()
        }
        self._labels = {name: label for label, name in self._names.items()}

    @classmethod
    def of(cls, dataset: Path, labels: Iterable[str]) -> "Names":
        """Return the names of a dataset's labels, as far as its taxonomy has them."""
        try:
            classes = load_taxonomy(dataset / TAXONOMY).classes
        except UserError:  # built by other means, or before a taxonomy was stored beside it
            classes = ()
        return cls(labels, {skin_class.key: skin_class.name for skin_class in classes})

    @property
    def all(self) -> tuple[str, ...]:
        """The names, in the order of the labels."""
        return tuple(self._labels)

    def name(self, label: str) -> str:
        """Return the name of a label; an unknown one is its own words."""
        return self._names.get(label) or _words(label)

    def shown(self, boxes: Iterable[Box]) -> tuple[Box, ...]:
        """Return boxes with names for labels."""
        return tuple(dataclasses.replace(box, label=self.name(box.label)) for box in boxes)

    def stored(self, boxes: Iterable[Box]) -> tuple[Box, ...]:
        """Return boxes with labels for names; an unknown name stays, for the review to refuse."""
        return tuple(
            dataclasses.replace(box, label=self._labels.get(box.label, box.label)) for box in boxes
        )


def _words(label: str) -> str:
    words = label.replace("_", " ").strip() or label
    return words[:1].upper() + words[1:]


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


class _Images(ABC):
    """ASGI middleware that answers for the JPEGs below a path."""

    prefix: str

    def __init__(self, app: App) -> None:
        self.app = app

    @abstractmethod
    def _jpeg(self, path: str) -> bytes | None:
        """Return the JPEG of a path; None: there is none."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Send the JPEG, 404 for one that is not there."""
        if scope["type"] != "http" or not scope["path"].startswith(self.prefix):
            await self.app(scope, receive, send)
            return
        from starlette.concurrency import run_in_threadpool

        try:
            jpeg = await run_in_threadpool(self._jpeg, scope["path"])
        except (UserError, OSError, DamagedImage) as error:
            log.warning("%s cannot be shown: %s", scope["path"][1:20], error)
            jpeg = None
        headers = {"cache-control": "no-store"}
        if jpeg is None:
            await respond(send, 404, b"not found", headers=headers)
        else:
            await respond(send, 200, jpeg, "image/jpeg", headers)


class ReviewImages(_Images):
    """The images of a review."""

    prefix = "/images/"

    def __init__(self, app: App, review: Review | SkinReview) -> None:
        super().__init__(app)
        self.review = review

    def _jpeg(self, path: str) -> bytes | None:
        match = _ROUTE.fullmatch(path)
        if match is None:
            return None
        return _jpeg_as_shown(read_image(self.review.dataset, self.review.record(match[1])))


class PairImages(_Images):
    """The drawings of pairs."""

    prefix = "/pairs/"

    def __init__(self, app: App, review: CopyReview) -> None:
        super().__init__(app)
        self.review = review

    def _jpeg(self, path: str) -> bytes | None:
        match = _PAIR.fullmatch(path)
        if match is None:
            return None
        pair = self.review.pair(match[1], match[2])
        first_HW3, second_HW3 = (
            read_image(self.review.dataset, record) for record in self.review.images(pair)
        )
        row = self.review.rows[pair]
        return view_jpeg(draw_pair(first_HW3, second_HW3, row.transform, _PAIR_SIDE))


def _jpeg_as_shown(pixels_HWC: NDArray[np.uint8]) -> bytes:
    import cv2

    height, width = pixels_HWC.shape[:2]
    larger_wh = shown_size((width, height))
    if larger_wh > (width, height):
        pixels_HWC = cv2.resize(pixels_HWC, larger_wh, interpolation=cv2.INTER_CUBIC)
    return view_jpeg(pixels_HWC)
