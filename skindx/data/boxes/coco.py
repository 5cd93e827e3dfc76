"""COCO JSON: one file for all images; who drew a box, when, and its score are extra fields."""

import json
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.data.box import BoxedImage, RawBox, boxed, sha256_in
from skindx.data.boxes.box_file import (
    UNLABELLED,
    BoxEntry,
    BoxFile,
    BoxRules,
    Frame,
    mapping,
    score_of,
    text_id,
)

_RULES = BoxRules()
_ADDRESSES = ("coco_url", "path")
"""Where else tools write an image's name."""


def read_coco(path: Path, rules: BoxRules = _RULES) -> BoxFile:
    """Read a COCO JSON of boxes.

    Boxes are cut to the image; one that lies outside or is empty is left out. So is, and counted,
    every row that cannot be used: an annotation of no image, of no category or without a box, an
    image without a size. An image without annotation counts as `rules.unannotated` says, except in
    our own exports, which hold only images that somebody looked at. Raises UserError for what is
    no COCO file.

    Label Studio's own COCO export gives the stored sizes of images and draws on upright pixels, so
    the sizes in it say nothing about its boxes.
    """
    raw = read_json(path)
    try:
        tables = [raw["images"], raw["annotations"], raw["categories"]]
        if not all(isinstance(table, list) for table in tables):
            raise TypeError("images, annotations and categories must be lists")
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not a COCO file of boxes ({type(error).__name__}: {error}); it must have "
            "images, categories, and annotations with bbox that name them by id."
        ) from None
    file = BoxFile(path)
    images, annotations, categories = tables
    labels = _labels(categories, file)
    keys = _image_keys(images, file)
    drawn: dict[str, list[RawBox]] = {key: [] for key in keys.values()}
    touched, unread = set[str](), Counter[str]()
    for number, annotation in enumerate(annotations, start=1):
        key = ""
        try:
            key = _image_of(annotation, drawn)
            touched.add(key)
            drawn[key].append(_raw(annotation, labels, path.name))
        except (ValueError, TypeError, OverflowError) as error:
            unread[key] += 1
            file.skip(str(error), _annotation_name(annotation, number))
    ours, sizeless = _is_older_export(raw), _of_label_studio(raw)
    for position, image in enumerate(images):
        if position in keys:
            key = keys[position]
            reviewed = ours or image.get("reviewed") is True
            if key in touched or reviewed or rules.unannotated == "negative":
                name = str(image["file_name"])
                sha256, size = sha256_in(image.get("sha256", name)), _size(image)
                room = (max(size), max(size)) if sizeless else size
                boxes = replace(
                    boxed(room, drawn[key], sha256, unread[key]), width=size[0], height=size[1]
                )
                frame: Frame = "upright" if reviewed else "either" if sizeless else "sized"
                also = tuple(str(image[key]) for key in _ADDRESSES if image.get(key))
                file.entries.append(BoxEntry((name,), boxes, frame=frame, also=also))
            else:
                file.wait(UNLABELLED, str(image["file_name"]))
    file.drop_repeated()
    return file


def is_coco(path: Path) -> bool:
    """Tell whether a JSON file is of COCO's tables. Raises UserError for what is no JSON."""
    raw = read_json(path)
    return isinstance(raw, dict) and {"images", "annotations", "categories"} <= raw.keys()


def write_coco(path: Path, by_name: Mapping[str, BoxedImage]) -> None:
    """Write file name -> image as COCO JSON, atomically."""
    write_json(path, coco_json(by_name))


def coco_json(by_name: Mapping[str, BoxedImage]) -> dict[str, Any]:
    """Return file name -> image as COCO's tables; categories are the labels, sorted."""
    labels = sorted({box.label for boxed_image in by_name.values() for box in boxed_image.boxes})
    number = {label: i for i, label in enumerate(labels, start=1)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image, (name, boxed_image) in enumerate(by_name.items(), start=1):
        images.append(
            {
                "id": image,
                "file_name": name,
                "width": boxed_image.width,
                "height": boxed_image.height,
                "sha256": boxed_image.sha256,
                "reviewed": True,
            }
        )
        for box in boxed_image.boxes:
            width, height = box.x2 - box.x1, box.y2 - box.y1
            extra = {"drawn_by": box.drawn_by, "drawn_at": box.drawn_at, "score": box.score}
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": number[box.label],
                    "bbox": [round(value, 6) for value in (box.x1, box.y1, width, height)],
                    "area": round(width * height, 6),
                    "iscrowd": 0,
                    **{key: value for key, value in extra.items() if value not in ("", None)},
                }
            )
    categories = [{"id": i, "name": label} for label, i in number.items()]
    return {"images": images, "categories": categories, "annotations": annotations}


def read_json(path: Path) -> Any:
    """Read JSON. Raises UserError."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; give a JSON file of boxes instead.")
    try:
        return json.loads(path.read_bytes())  # UTF-8, 16 or 32, with or without a mark
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give the path of a JSON file of boxes.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}); export them again.") from None


def _labels(categories: Sequence[Any], file: BoxFile) -> dict[str, str]:
    """Return category id -> name; one without either is left out."""
    labels: dict[str, str] = {}
    for number, category in enumerate(categories, start=1):
        try:
            name = str(mapping(category).get("name") or "").strip()
            if not name:
                raise ValueError("a category without a name")
            labels[text_id(category.get("id"))] = name
        except ValueError as error:
            file.skip(str(error), f"category {number}")
    return labels


def _image_keys(images: Sequence[Any], file: BoxFile) -> dict[int, str]:
    """Return position in `images` -> id; rows that can stand for no image are left out."""
    keys: dict[int, str] = {}
    for position, image in enumerate(images):
        name = f"image {position + 1}"
        try:
            name = str(mapping(image).get("file_name") or "")
            if not name:
                name = f"image {position + 1}"
                raise ValueError("an image without file_name")
            key = text_id(image.get("id"))
            _size(image)
        except (ValueError, TypeError, OverflowError) as error:
            file.skip(str(error), name)
            continue
        keys[position] = key
    counts = Counter(keys.values())
    for position, key in keys.items():
        if counts[key] > 1:
            file.skip("several images have one id", str(images[position]["file_name"]))
    return {position: key for position, key in keys.items() if counts[key] == 1}


def _size(image: Mapping[str, Any]) -> tuple[int, int]:
    try:
        width, height = int(image["width"]), int(image["height"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError("an image without width and height") from None
    if width < 1 or height < 1:
        raise ValueError(f"an image of {width} x {height} pixels")
    return width, height


def _of_label_studio(raw: Mapping[str, Any]) -> bool:
    info = raw.get("info")
    return isinstance(info, dict) and info.get("contributor") == "Label Studio"


def _is_older_export(raw: Mapping[str, Any]) -> bool:
    """Tell whether this software wrote the file before its rows said `reviewed`."""
    row = {"id", "file_name", "width", "height", "sha256"}
    return raw.keys() == {"images", "annotations", "categories"} and all(
        isinstance(image, dict) and image.keys() == row for image in raw["images"]
    )


def _annotation_name(annotation: Any, number: int) -> str:
    known = isinstance(annotation, dict) and annotation.get("id") is not None
    return f"annotation {str(annotation['id'])[:40] if known else f'no. {number}'}"


def _image_of(annotation: Any, known: Container[str]) -> str:
    key = text_id(mapping(annotation).get("image_id"))
    if key not in known:
        raise ValueError("an annotation of an image that the file does not have")
    return key


def _raw(annotation: Mapping[str, Any], labels: Mapping[str, str], file: str) -> RawBox:
    """Turn COCO's x, y, width, height into corners."""
    try:
        label = labels[text_id(annotation.get("category_id"))]
    except (KeyError, ValueError):
        raise ValueError("an annotation of a category that the file does not have") from None
    try:
        x, y, width, height = (float(value) for value in annotation["bbox"])
    except (KeyError, TypeError, ValueError):
        shape = "a polygon or mask" if annotation.get("segmentation") else "an annotation"
        raise ValueError(f"{shape} without bbox (x, y, width, height)") from None
    return RawBox(
        x,
        y,
        x + width,
        y + height,
        label,
        str(annotation.get("drawn_by") or file),
        score_of(annotation.get("score")),
        str(annotation.get("drawn_at") or ""),
    )
