"""Label Studio tasks (JSON): boxes in percent, proposals as predictions, people as annotations.

Images are joined by our own id, `data.sha256`: Label Studio renames what it imports. The format
is https://labelstud.io/guide/task_format; a task that was not completed is in no answer.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from skindx.data.box import Box, BoxedImage, RawBox, base_name, boxed, sha256_in
from skindx.data.boxes.coco import read_json
from skindx.errors import UserError
from skindx.files import write_json


@dataclass(frozen=True, slots=True)
class Drawing:
    """The boxes that one person or model gave one image, and when (UTC, ISO 8601)."""

    by: str
    at: str
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """One image to look at, what people drew in it, and what models propose."""

    name: str
    sha256: str
    size: tuple[int, int]
    image: str
    """Address from which Label Studio gets the image."""
    annotations: tuple[Drawing, ...] = ()
    predictions: tuple[Drawing, ...] = ()


def interface(labels: Sequence[str]) -> str:
    """Return the labelling interface that a project needs for our tasks."""
    choices = "".join(f"<Label value={quoteattr(label)}/>" for label in labels)
    return (
        f'<View><Image name="image" value="$image"/>'
        f'<RectangleLabels name="label" toName="image">{choices}</RectangleLabels></View>'
    )


def write_labelstudio(path: Path, tasks: Sequence[Task]) -> None:
    """Write tasks as Label Studio imports them, atomically, in the order given."""
    write_json(path, [_task(task) for task in tasks])


def read_answers(path: Path, *, unopened: bool = True) -> list[tuple[str, str, str, BoxedImage]]:
    """Return (file name, by, at, image) of every completed annotation in an export.

    Skipped tasks and tasks without annotation are left out; a completed one without boxes says
    that there are none, and shapes other than rectangles count as refused. `by` is the account's
    e-mail address, or "labelstudio:" and its number. Without `unopened`, `by` is "" where
    the annotation came with our tasks and was not opened there: Label Studio names for it
    the user who imported the tasks. Raises UserError.
    """
    raw = read_json(path)
    try:
        return [answer for task in raw for answer in _answers(task, unopened)]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(
            f"{path} is no Label Studio export ({type(error).__name__}: {error}); export as JSON, "
            f"not as JSON-MIN."
        ) from None


def read_labelstudio(path: Path) -> dict[str, BoxedImage]:
    """Read the latest completed annotation of each task: file name -> image. Raises UserError."""
    latest: dict[str, tuple[str, BoxedImage]] = {}
    for name, _, at, image in read_answers(path):
        if name not in latest or latest[name][0] <= at:
            latest[name] = (at, image)
    return {name: image for name, (_, image) in latest.items()}


def _task(task: Task) -> dict[str, Any]:
    width, height = task.size
    data = {
        "image": task.image,
        "sha256": task.sha256,
        "file_name": task.name,
        "width": width,
        "height": height,
    }
    annotations = [
        {"result": _result(drawn.boxes, task.size), "drawn_by": drawn.by, "drawn_at": drawn.at}
        for drawn in task.annotations
    ]
    predictions = [
        {
            "model_version": proposed.by,
            "score": max((box.score or 0.0 for box in proposed.boxes), default=0.0),
            "result": _result(proposed.boxes, task.size),
        }
        for proposed in task.predictions
    ]
    return {"data": data, "annotations": annotations, "predictions": predictions}


def _result(boxes: Sequence[Box], size: tuple[int, int]) -> list[dict[str, Any]]:
    width, height = size
    return [
        {
            "id": f"box{number}",
            "type": "rectanglelabels",
            "from_name": "label",
            "to_name": "image",
            "original_width": width,
            "original_height": height,
            "image_rotation": 0,
            "value": {
                "x": 100 * box.x1 / width,
                "y": 100 * box.y1 / height,
                "width": 100 * (box.x2 - box.x1) / width,
                "height": 100 * (box.y2 - box.y1) / height,
                "rotation": 0,
                "rectanglelabels": [box.label],
            },
            "meta": {"drawn_by": box.drawn_by, "drawn_at": box.drawn_at},
            **({} if box.score is None else {"score": box.score}),
        }
        for number, box in enumerate(boxes)
    ]


def _answers(task: dict[str, Any], unopened: bool) -> Iterator[tuple[str, str, str, BoxedImage]]:
    data = task["data"]
    sha256 = sha256_in(data.get("sha256", ""))
    name = base_name(str(data.get("file_name") or data["image"]))
    for annotation in task.get("annotations", ()):
        if annotation.get("was_cancelled"):
            continue
        # Its page sends the time that was spent with every answer; what was imported has none.
        passed_on = not unopened and sha256 and annotation.get("lead_time", 0) is None
        by, at = "" if passed_on else _who(annotation), _when(annotation)
        regions = [region for region in annotation["result"] if region["type"] == "rectanglelabels"]
        # An answer without boxes has no region that gives the size; 0 x 0 means unknown.
        first = regions[0] if regions else {}
        size = (
            int(first.get("original_width", data.get("width", 0))),
            int(first.get("original_height", data.get("height", 0))),
        )
        # The fields of a region count only as long as it was not edited there.
        ours = "drawn_by" in annotation
        drawn = [_raw(region, size, by, at, trust=ours) for region in regions]
        image = boxed(size, drawn, sha256)
        others = sum(_is_shape(region) for region in annotation["result"]) - len(regions)
        yield name, by, at, replace(image, refused=image.refused + others)


def _is_shape(result: dict[str, Any]) -> bool:
    """True for what is drawn in the image, False for a word about it or a relation."""
    return not {"x", "points", "vertices", "rle"}.isdisjoint(result.get("value") or {})


def _who(annotation: dict[str, Any]) -> str:
    if "drawn_by" in annotation:
        return str(annotation["drawn_by"])
    who = annotation.get("completed_by", "unknown")
    if isinstance(who, dict):
        who = who.get("email") or who.get("id", "unknown")
    return who if isinstance(who, str) and "@" in who else f"labelstudio:{who}"


def _when(annotation: dict[str, Any]) -> str:
    keys = ("drawn_at", "updated_at", "created_at")
    return next((str(annotation[key]) for key in keys if annotation.get(key)), "")


def _raw(region: dict[str, Any], size: tuple[int, int], by: str, at: str, *, trust: bool) -> RawBox:
    """Turn percent into pixels; a rotated rectangle gives the upright one around it."""
    value, (width, height) = region["value"], size
    x, y = float(value["x"]) * width / 100, float(value["y"]) * height / 100
    w, h = float(value["width"]) * width / 100, float(value["height"]) * height / 100
    angle = math.radians(float(value.get("rotation", 0)))
    cos, sin = math.cos(angle), math.sin(angle)
    # Rotation is clockwise about the top left corner.
    xs = [x, x + w * cos, x - h * sin, x + w * cos - h * sin]
    ys = [y, y + w * sin, y + h * cos, y + w * sin + h * cos]
    meta = region.get("meta") or {}
    if trust:
        by, at = str(meta.get("drawn_by") or by), str(meta.get("drawn_at") or "")
    score = region.get("score") if trust else None
    label = str(value["rectanglelabels"][0])
    return RawBox(
        min(xs), min(ys), max(xs), max(ys), label, by, None if score is None else float(score), at
    )
