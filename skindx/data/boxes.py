"""Lesion boxes: the value type, and where boxes come from."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from skindx.errors import UserError


@dataclass(frozen=True, slots=True)
class Box:
    """One rectangle in pixels of the stored picture, origin top left, x2/y2 exclusive.

    `label` is a class name or "lesion"; `drawn_by` says who drew it (a person, a file, a model)
    and `drawn_at` when (UTC, ISO 8601). `score` in 0..1 is a detector's confidence, None for a box
    that was drawn.
    """

    x1: float
    y1: float
    x2: float
    y2: float
    label: str = "lesion"
    drawn_by: str = ""
    score: float | None = None
    drawn_at: str = ""

    def __post_init__(self) -> None:
        """Refuse an empty or reversed rectangle."""
        if not (self.x1 < self.x2 and self.y1 < self.y2):
            raise ValueError(f"box needs x1 < x2 and y1 < y2, got {self}")


@dataclass(frozen=True, slots=True)
class BoxedPicture:
    """What a box file says of one picture; boxes () means that somebody looked and found none."""

    width: int
    height: int
    boxes: tuple[Box, ...]


def read_coco(path: Path) -> dict[str, BoxedPicture]:
    """Read a COCO JSON of boxes: file name (without folders) -> picture.

    Boxes are cut to the picture; one that lies outside or is empty is left out. Raises UserError
    for what is no COCO file and for two pictures of the same name.
    """
    raw = _read_json(path)
    try:
        names = {category["id"]: str(category["name"]) for category in raw["categories"]}
        drawn: dict[int, list[Box]] = {image["id"]: [] for image in raw["images"]}
        sizes = {
            image["id"]: (int(image["width"]), int(image["height"])) for image in raw["images"]
        }
        for annotation in raw["annotations"]:
            image = annotation["image_id"]
            box = _cut(
                annotation["bbox"], sizes[image], names[annotation["category_id"]], path.name
            )
            drawn[image] += [box] if box else []
        pictures: dict[str, BoxedPicture] = {}
        for image in raw["images"]:
            name = PurePosixPath(image["file_name"]).name
            if name in pictures:
                raise UserError(f"{path} names {name!r} twice; file names must be unique.")
            pictures[name] = BoxedPicture(*sizes[image["id"]], tuple(drawn[image["id"]]))
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{path} is no COCO file of boxes ({type(error).__name__}: {error}); it needs images, "
            f"annotations with bbox, and categories that refer to each other by id."
        ) from None
    return pictures


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; correct `boxes`.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}).") from None


def _cut(bbox: Sequence[float], size: tuple[int, int], label: str, drawn_by: str) -> Box | None:
    """Turn COCO's x, y, width, height into a box inside a picture of `size` (width, height)."""
    x, y, w, h = (float(value) for value in bbox)
    x1, y1 = max(x, 0.0), max(y, 0.0)
    x2, y2 = min(x + w, size[0]), min(y + h, size[1])
    return Box(x1, y1, x2, y2, label, drawn_by) if x1 < x2 and y1 < y2 else None
