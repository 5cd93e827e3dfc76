"""COCO JSON: one file for all images; who drew a box, when, and its score are extra fields."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skindx.data.box import BoxedImage, RawBox, boxed, put_image, sha256_in
from skindx.errors import UserError
from skindx.files import write_json


def read_coco(path: Path) -> dict[str, BoxedImage]:
    """Read a COCO JSON of boxes: file name (without folders) -> image.

    Boxes are cut to the image; one that lies outside or is empty is left out. Raises UserError
    for what is no COCO file and for two images of the same name.
    """
    raw = read_json(path)
    try:
        names = {category["id"]: str(category["name"]) for category in raw["categories"]}
        drawn: dict[Any, list[RawBox]] = {image["id"]: [] for image in raw["images"]}
        for annotation in raw["annotations"]:
            label = names[annotation["category_id"]]
            drawn[annotation["image_id"]].append(_raw(annotation, label, path.name))
        by_name: dict[str, BoxedImage] = {}
        for image in raw["images"]:
            size = (int(image["width"]), int(image["height"]))
            sha256 = sha256_in(image.get("sha256", image["file_name"]))
            put_image(by_name, path, image["file_name"], boxed(size, drawn[image["id"]], sha256))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{path} is no COCO file of boxes ({type(error).__name__}: {error}); it needs images, "
            f"annotations with bbox, and categories that refer to each other by id."
        ) from None
    return by_name


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
        raise UserError(f"{path} is a folder; give a JSON file of boxes.")
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give a file of boxes.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}); give a file of boxes.") from None


def _raw(annotation: dict[str, Any], label: str, file: str) -> RawBox:
    """Turn COCO's x, y, width, height into corners."""
    x, y, width, height = (float(value) for value in annotation["bbox"])
    score = annotation.get("score")
    return RawBox(
        x,
        y,
        x + width,
        y + height,
        label,
        str(annotation.get("drawn_by") or file),
        None if score is None else float(score),
        str(annotation.get("drawn_at") or ""),
    )
