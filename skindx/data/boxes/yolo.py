"""YOLO as ultralytics lays it out: images/, labels/ beside them, and data.yaml with the names.

The last `images` in an image's path is replaced by `labels` to find its boxes, so that
`images/train` as well as Roboflow's `train/images` are read. What data.yaml says of folders is
not followed: it may point anywhere on the reader's disk.

`class cx cy w h` is a box, a fifth value its confidence or track id. From six values on, a line
may be a polygon `x1 y1 x2 y2 x3 y3 …` as well as a box with a confidence and a track id, or with
keypoints: ultralytics writes all of them into the same kind of file (`save_txt`, `save_conf`,
`track`), and only `kpt_shape` in data.yaml tells keypoints apart. A folder comes from one tool, so
what one of its lines can only be, the others are as well. Where no line tells, the lines are
refused: a confidence is no coordinate.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from skindx.core.atomic_files import below, write_text
from skindx.core.errors import UserError
from skindx.core.settings_base import read_yaml
from skindx.data.box import BoxedImage, RawBox, boxed, sha256_in
from skindx.data.boxes.box_file import (
    BoxEntry,
    BoxFile,
    BoxRules,
    Framed,
    YoloColumns,
    place,
    upright_size,
)

_SLACK = 0.01
"""Share of the image by which a box may stand out of it, as tools round."""


@dataclass(frozen=True, slots=True)
class ColumnMeaning:
    """What lines of six and more values are; None: the folder does not tell."""

    kind: YoloColumns | None
    keypoints: int = 0
    """Values of keypoints after the box of a line, as data.yaml says."""
    stated: bool = False
    """A person says that each line begins with a box: what comes after it does not count."""


@dataclass(frozen=True, slots=True)
class YoloBox:
    """A box in shares of the image: x1, y1, x2, y2, and its confidence where it has one."""

    corners: tuple[float, float, float, float]
    score: float | None = None


def meaning_of(
    lines: Iterable[Sequence[float]], columns: YoloColumns | None, keypoints: int
) -> ColumnMeaning:
    """Return what the long lines of a folder are; each line is its values after the class."""
    if columns or keypoints:
        return ColumnMeaning(columns or "box", keypoints, stated=columns == "box")
    long = [values for values in lines if len(values) >= 6]
    polygons = any(_only_polygon(values) for values in long)
    tracks = any(_only_tracked(values) for values in long)
    # Keypoints have the same number in every line, and an id that is missing makes it odd.
    even = {len(values) for values in long if len(values) % 2 == 0 and _inside(values)}
    if tracks and not polygons:
        return ColumnMeaning("box")
    return ColumnMeaning("polygon" if not tracks and (polygons or len(even) > 1) else None)


def read_values(values: Sequence[float], meaning: ColumnMeaning) -> YoloBox:
    """Read a line's values after the class. Raises ValueError that says which columns and why."""
    count = len(values)
    if count < 4 or not all(map(math.isfinite, values)):
        raise ValueError("a line must be `class x y width height` in shares of the image")
    if count == 4 or meaning.stated:
        return YoloBox(_box(values), _share(values[4]) if count == 5 else None)
    if count == 5:
        return YoloBox(_box(values), _fifth(values[4]))
    if meaning.kind == "polygon":
        return _polygon(values)
    if meaning.keypoints:
        extra = count - 4 - meaning.keypoints
        if extra not in (0, 1, 2):
            raise ValueError(
                f"a line has {count + 1} columns, but kpt_shape in data.yaml requires "
                f"{5 + meaning.keypoints}"
            )
        return YoloBox(_box(values), _share(values[4 + meaning.keypoints]) if extra else None)
    if meaning.kind == "box" and count == 6 and _is_id(values[5]) and 0 <= values[4] <= 1:
        return YoloBox(_box(values), _share(values[4]))
    raise ValueError(
        f"columns 6 to {count + 1} have several possible meanings (confidence, track id, "
        "keypoints, polygon); give --columns box or --columns polygon, or set `boxes.columns` in "
        "the recipe"
    )


def _box(values: Sequence[float]) -> tuple[float, float, float, float]:
    cx, cy, w, h = values[:4]
    return cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2


def _fifth(value: float) -> float | None:
    """Return a confidence, None for a track id. Raises ValueError for what is neither."""
    if value.is_integer() and value >= 0:
        return None  # 1 may be either, and the box is the same
    if not 0 <= value <= 1:
        raise ValueError(
            "column 6 is neither a confidence (0 to 1) nor a track id (a whole number)"
        )
    return _share(value)


def _polygon(values: Sequence[float]) -> YoloBox:
    score = None
    if len(values) % 2:
        *values, last = values
        score = _share(last)
        if score is None:
            raise ValueError(f"column {len(values) + 2} is not a confidence (0 to 1) of a polygon")
    xs, ys = values[::2], values[1::2]
    return YoloBox((min(xs), min(ys), max(xs), max(ys)), score)


def _share(value: float) -> float | None:
    return value if 0 <= value <= 1 else None


def _is_id(value: float) -> bool:
    return value >= 0 and value.is_integer()


def _inside(values: Sequence[float]) -> bool:
    return all(-_SLACK <= value <= 1 + _SLACK for value in values)


def _is_box(values: Sequence[float]) -> bool:
    """Tell whether the first four values may be a box of the image."""
    x1, y1, x2, y2 = _box(values)
    return _inside((x1, y1, x2, y2)) and x1 < x2 and y1 < y2


def _only_tracked(values: Sequence[float]) -> bool:
    """Tell whether a line can only be a box, its confidence and its track id."""
    if len(values) != 6 or not _is_box(values) or _share(values[4]) is None:
        return False
    return _is_id(values[5]) and values[5] > 1


def _only_polygon(values: Sequence[float]) -> bool:
    """Tell whether a line can only be a polygon, with or without a confidence after it."""
    if len(values) % 2:
        *values, last = values
        if len(values) < 6 or _share(last) is None:
            return False
    if not _inside(values):
        return False
    points = list(zip(values[::2], values[1::2], strict=True))
    if not _is_box(values) or points[0] == points[-1]:
        return True
    return _is_rectangle(points)


def _is_rectangle(points: Sequence[tuple[float, float]]) -> bool:
    if len(points) != 4 or len(set(points)) != 4:
        return False
    return len({x for x, _ in points}) == len({y for _, y in points}) == 2


DATA = "data.yaml"
_RULES = BoxRules()


def read_yolo(path: Path, rules: BoxRules = _RULES) -> BoxFile:
    """Read a YOLO folder, or its data.yaml.

    An image with an empty label file was looked at and has no box; one without a label file counts
    as `rules.unannotated` says. A polygon gives the box around it, and lines of many columns are
    read as said at the top of this module. Lines and files that cannot be used are left out and
    counted. Who drew is not in the format: `drawn_by` is the folder. Raises UserError.
    """
    root = path.parent if path.suffix in (".yaml", ".yml") else path
    if root.is_file():
        raise UserError(f"{root} is a file; give the folder that contains {DATA}.")
    data = read_yaml(root / DATA if path == root else path)
    names = _names(data, root / DATA)
    file = BoxFile(root)
    images, used = 0, set[Path]()
    looked: list[tuple[Path, Framed, list[_Line]]] = []
    for image, labels in label_files(root):
        if not labels.is_file():
            if framed := upright_size(image):
                _without_labels(file, image, framed, rules)
            continue
        used.add(labels)
        framed = upright_size(image)
        shown = image.relative_to(root).as_posix()
        if framed is None:
            file.skip("the image beside the label file cannot be read", shown)
            continue
        images += 1
        try:
            looked.append((image, framed, _lines(labels, root, names)))
        except (OSError, UnicodeDecodeError) as error:
            file.skip(f"a label file that cannot be read ({error})", shown)
    if not (images or len(file.waiting) or file.entries or len(file.findings)):
        raise UserError(
            f"{root} has no image with a label file; put the images in a folder `images`, and "
            "text files of the same names in a folder `labels` next to the folder `images`."
        )
    _count_orphans(file, used)
    values = [line.values for _, _, lines in looked for line in lines if line.label]
    meaning = meaning_of(values, rules.columns, _keypoints(data, root / DATA))
    for image, framed, lines in looked:
        file.entries.append(_entry(file, image, framed, lines, meaning))
    file.entries.sort(key=lambda entry: entry.name)
    return file


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a label file; without a label it cannot be used, and `problem` says why."""

    where: str
    values: tuple[float, ...] = ()
    label: str = ""
    problem: str = ""


def _without_labels(file: BoxFile, image: Path, framed: Framed, rules: BoxRules) -> None:
    shown = image.relative_to(file.path).as_posix()
    if rules.unannotated == "negative":
        file.entries.append(_entry(file, image, framed, (), ColumnMeaning(None)))
    else:
        file.wait(
            "images without a label file; --unannotated negative (in a recipe boxes.unannotated) "
            "takes them as looked at and without a lesion",
            shown,
        )


def _count_orphans(file: BoxFile, used: Collection[Path]) -> None:
    """Count label files whose image is not there."""
    for labels in below(file.path, "*.txt"):
        parts = labels.relative_to(file.path).parts
        other = labels.name.startswith(".") or labels.name == "classes.txt"
        if "labels" in parts[:-1] and labels not in used and not other:
            file.skip("a label file without an image", "/".join(parts))


def _entry(
    file: BoxFile, image: Path, framed: Framed, lines: Iterable[_Line], meaning: ColumnMeaning
) -> BoxEntry:
    (width, height), frame = framed
    drawn, unread = [], 0
    for line in lines:
        try:
            if line.problem:
                raise ValueError(line.problem)
            box = read_values(line.values, meaning)
        except ValueError as error:
            unread += 1
            file.skip(str(error), line.where)
            continue
        x1, y1, x2, y2 = box.corners
        corners = x1 * width, y1 * height, x2 * width, y2 * height
        drawn.append(RawBox(*corners, line.label, file.path.name, box.score))
    boxes = boxed((width, height), drawn, sha256_in(image.name), unread)
    return BoxEntry((image.relative_to(file.path).as_posix(),), boxes, frame=frame)


def label_files(root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each file below a folder `images` of `root`, and where its labels would be."""
    for image in below(root):
        parts = image.relative_to(root).parts
        if "images" not in parts[:-1] or image.name.startswith(".") or not image.is_file():
            continue
        last = max(i for i, part in enumerate(parts[:-1]) if part == "images")
        swapped = root.joinpath(*parts[:last], "labels", *parts[last + 1 :])
        yield image, swapped.with_suffix(".txt")


def write_yolo(
    folder: Path,
    splits: Iterable[tuple[str, Mapping[str, BoxedImage]]],
    files: Mapping[str, Path],
    labels: Sequence[str],
    *,
    copy: bool = False,
) -> Path:
    """Write (split, file name -> image) into `folder`; return the path of data.yaml.

    `files` says where each image lies: it is linked, or copied. The class numbers are positions
    in `labels`. Raises UserError for two images whose label files would be one.
    """
    data: dict[str, Any] = {}
    for split, images in splits:
        data[split] = f"images/{split}"
        (folder / "labels" / split).mkdir(parents=True)
        place(folder / "images" / split, {name: files[name] for name in images}, copy=copy)
        for name, image in images.items():
            lines = [
                f"{labels.index(box.label)} "
                f"{(box.x1 + box.x2) / 2 / image.width:.9f} "
                f"{(box.y1 + box.y2) / 2 / image.height:.9f} "
                f"{(box.x2 - box.x1) / image.width:.9f} "
                f"{(box.y2 - box.y1) / image.height:.9f}\n"
                for box in image.boxes
            ]
            (folder / "labels" / split / f"{Path(name).stem}.txt").write_text("".join(lines))
    # Without `path` the folders are looked for beside data.yaml: the whole can be moved.
    data["names"] = list(labels)
    write_text(folder / DATA, yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    return folder / DATA


def _names(data: Mapping[str, Any], data_yaml: Path) -> dict[int, str]:
    names: Any = data.get("names")
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict) or not names:
        raise UserError(f"{data_yaml} has no `names`; add `names` with the classes in their order.")
    # Nested lists may be short to write and endless to read (YAML aliases).
    if not all(isinstance(name, str | int | float) for name in names.values()):
        raise UserError(
            f"{data_yaml}: each class in `names` must be one word or number; correct the file."
        )
    try:
        return {int(number): str(name) for number, name in names.items()}
    except (TypeError, ValueError):
        raise UserError(f"{data_yaml}: number the classes in `names` by whole numbers.") from None


def _keypoints(data: Mapping[str, Any], data_yaml: Path) -> int:
    """Return how many values of keypoints follow the box of each line, 0 where there are none."""
    shape = data.get("kpt_shape")
    if shape is None:
        return 0
    try:
        points, values = (int(number) for number in shape)
    except (TypeError, ValueError):
        points, values = 0, 0
    if points < 1 or values not in (2, 3):
        raise UserError(f"{data_yaml}: `kpt_shape` is {shape!r}; write [points, 2] or [points, 3].")
    return points * values


def _lines(labels: Path, root: Path, names: Mapping[int, str]) -> list[_Line]:
    """Read a label file. Raises OSError and UnicodeDecodeError."""
    text = labels.read_text(encoding="utf-8-sig")
    shown = labels.relative_to(root).as_posix()
    return [
        _line(line, names, f"{shown}, line {number}")
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]


def _line(line: str, names: Mapping[int, str], where: str) -> _Line:
    words = line.split()
    try:
        values = tuple(float(word) for word in words[1:])
        number = float(words[0])
    except ValueError:
        problem = "a line must be `class x y width height` in numbers"
        return _Line(f"{where}: {line[:60]!r}", problem=problem)
    if not number.is_integer():
        return _Line(where, problem=f"class {words[0][:20]} is no whole number")
    if int(number) not in names:
        return _Line(where, problem=f"class {words[0][:20]} is not in `names` of {DATA}")
    if not names[int(number)].strip():
        return _Line(where, problem=f"class {words[0][:20]} has an empty name in {DATA}")
    return _Line(where, values, names[int(number)].strip())
