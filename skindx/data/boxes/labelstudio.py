"""Label Studio tasks (JSON): boxes in percent, proposals as predictions, people as annotations.

Images are joined by our own id, `data.sha256`: Label Studio renames what it imports. The format
is https://labelstud.io/guide/task_format; a task that was not completed is in no answer.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.data.box import UNKNOWN_SIZE, Box, RawBox, boxed, sha256_in
from skindx.data.boxes.box_file import BoxEntry, BoxFile, BoxRules, Frame, score_of
from skindx.data.boxes.coco import read_json

_RULES = BoxRules()
_SHAPES = {"x", "points", "vertices", "rle"}
_ADDRESS = re.compile(r"/|\.(jpe?g|png|webp|bmp|tiff?|heic)\b", re.IGNORECASE)


class _OddRectangleError(ValueError):
    """What is wrong with a rectangle, for a person to read."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """The boxes that one person or model gave one image, and when (UTC, ISO 8601)."""

    by: str
    at: str
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class LabelTask:
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


def write_labelstudio(path: Path, tasks: Sequence[LabelTask]) -> None:
    """Write tasks as Label Studio imports them, atomically, in the order given."""
    write_json(path, [_task(task) for task in tasks])


def read_answers(path: Path, *, unopened: bool = True) -> BoxFile:
    """Read every completed annotation in an export, one entry each.

    Skipped tasks and tasks without annotation are counted and left out; a completed one without
    boxes says that there are none. Shapes other than rectangles count as refused; rectangles that
    cannot be used, such as one without a label, are left out and counted, and their image counts
    as unread. `by` is the account's e-mail address, or "labelstudio:" and its number. Without
    `unopened`, `by` is "" where the annotation came with our tasks and was not opened there: Label
    Studio names for it the user who imported the tasks. Raises UserError for what is no export.
    """
    raw = read_json(path)
    file = BoxFile(path)
    tasks = 0
    if isinstance(raw, list):
        for number, task in enumerate(raw, start=1):
            tasks += isinstance(task, dict) and isinstance(task.get("data"), dict)
            try:
                _read_task(file, task, f"task {number}", unopened)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                file.skip(f"a task that cannot be read ({type(error).__name__})", f"task {number}")
    if not isinstance(raw, list) or (raw and not tasks):
        raise UserError(
            f"{path} is not an export of Label Studio in the format JSON; export it again as "
            "JSON, not as JSON-MIN."
        )
    return file


def read_labelstudio(path: Path, rules: BoxRules = _RULES) -> BoxFile:
    """Read the latest completed annotation of each task. Raises UserError."""
    file = read_answers(path)
    latest: dict[object, BoxEntry] = {}
    for entry in file.entries:
        key = entry.image.sha256 or entry.paths
        if key not in latest or latest[key].at <= entry.at:
            latest[key] = entry
    file.entries = list(latest.values())
    return file


def _task(task: LabelTask) -> dict[str, Any]:
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


def _read_task(file: BoxFile, task: Mapping[str, Any], where: str, unopened: bool) -> None:
    data = task["data"]
    if not isinstance(data, dict):
        raise TypeError("`data` is not an object")
    paths = _paths(data, task)
    if not paths:
        file.skip("a task that names no image", where)
        return
    sha256 = sha256_in(data.get("sha256", ""))
    completed = [each for each in task.get("annotations") or () if not each.get("was_cancelled")]
    if not completed:
        file.wait("tasks that nobody has completed", paths[0])
    for annotation in completed:
        # Its page sends the time that was spent with every answer; what was imported has none.
        passed_on = not unopened and sha256 and annotation.get("lead_time", 0) is None
        by, at = "" if passed_on else _who(annotation), _when(annotation)
        # The fields of a region count only as long as it was not edited there.
        ours = "drawn_by" in annotation
        results = [each for each in annotation.get("result") or () if isinstance(each, dict)]
        regions = [each for each in results if each.get("type") == "rectanglelabels"]
        size = _size(regions, data)
        drawn, unread = [], 0
        for region in regions:
            try:
                if _region_size(region, size) != size:
                    raise _OddRectangleError("rectangles in images of several sizes in one task")
                drawn.append(_raw(region, size, by, at, trust=ours))
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                readable = isinstance(error, _OddRectangleError)
                file.skip(
                    str(error) if readable else "a rectangle without x, y, width, height", where
                )
                unread += 1
        unsupported = sum(_is_shape(result) for result in results) - len(regions)
        image = boxed(size, drawn, sha256, unread, max(unsupported, 0))
        views = {_view_deg(region) for region in regions}
        frame: Frame = "upright" if ours and sha256 else "sized"
        view_deg = views.pop() if len(views) == 1 else 0
        also = (str(upload),) if (upload := task.get("file_upload")) else ()
        file.entries.append(BoxEntry(paths, image, by, at, frame, view_deg, also))


def _paths(data: Mapping[str, Any], task: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a task's image: the key of its address is the project's choice."""
    named = [data.get("file_name"), data.get("image")]
    if not any(named):
        named = [each for each in data.values() if isinstance(each, str) and _ADDRESS.search(each)]
        named = named[:1] or [task.get("file_upload")]
    return tuple(dict.fromkeys(str(each) for each in named if each))


def _size(regions: Sequence[Mapping[str, Any]], data: Mapping[str, Any]) -> tuple[int, int]:
    """Return (width, height); an answer without boxes has no region that gives it: 0 x 0."""
    first = regions[0] if regions else {}
    try:
        return (
            int(first.get("original_width", data.get("width", 0))),
            int(first.get("original_height", data.get("height", 0))),
        )
    except (TypeError, ValueError, OverflowError):
        return UNKNOWN_SIZE


def _region_size(region: Mapping[str, Any], size: tuple[int, int]) -> tuple[int, int]:
    width = int(region.get("original_width", size[0]))
    height = int(region.get("original_height", size[1]))
    if width < 1 or height < 1:
        raise _OddRectangleError(f"a rectangle in an image of {width} x {height} pixels")
    return width, height


def _view_deg(region: Mapping[str, Any]) -> int:
    """Return by how much the view was turned clockwise: 0, 90, 180, 270.

    Label Studio's page keeps the coordinates of the image as its browser shows it unturned.
    """
    try:
        return int(region.get("image_rotation") or 0) % 360
    except (TypeError, ValueError, OverflowError):
        return 0


def _is_shape(result: dict[str, Any]) -> bool:
    """True for what is drawn in the image, False for a word about it or a relation."""
    if result.get("type") == "rectanglelabels":
        return True
    value = result.get("value")
    return isinstance(value, dict) and not _SHAPES.isdisjoint(value)


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
    angle = math.radians(float(value.get("rotation") or 0))
    cos, sin = math.cos(angle), math.sin(angle)
    # Rotation is clockwise about the top left corner.
    xs = [x, x + w * cos, x - h * sin, x + w * cos - h * sin]
    ys = [y, y + w * sin, y + h * cos, y + w * sin + h * cos]
    meta = region.get("meta") or {}
    if trust:
        by, at = str(meta.get("drawn_by") or by), str(meta.get("drawn_at") or "")
    score = score_of(region.get("score")) if trust else None
    labels = value.get("rectanglelabels")
    label = str(labels[0]).strip() if isinstance(labels, list) and labels else ""
    if not label:
        raise _OddRectangleError("a rectangle without a label")
    return RawBox(min(xs), min(ys), max(xs), max(ys), label, by, score, at)
