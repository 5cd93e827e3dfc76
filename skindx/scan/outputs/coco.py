"""The outlines as COCO JSON, for annotation tools."""

from pathlib import Path
from typing import Any

from skindx.core.atomic_files import write_json
from skindx.data.box import BoxedImage
from skindx.data.boxes.coco import coco_json
from skindx.scan.outputs.result import NOT_A_DIAGNOSIS, ScanResult

COCO = "lesions.coco.json"


def write_coco(folder: Path, result: ScanResult) -> None:
    """Write the boxes by photo in order of rank; each has `rank` and `urgent_risk` beside."""
    by_photo: dict[str, BoxedImage] = {}
    ranked: list[Any] = []
    for place, photo in enumerate(result.photos):
        own = [found for found in result.ranked if found.photo == place]
        boxes = tuple(found.lesion.box for found in own)
        # Two photos may have one name: COCO identifies images by their numbers.
        by_photo[f"{place}/{photo.name}"] = BoxedImage(
            photo.width, photo.height, boxes, photo.sha256
        )
        ranked += own
    tables = coco_json(by_photo)
    for image, photo in zip(tables["images"], result.photos, strict=True):
        image["file_name"] = photo.name
    for annotation, found in zip(tables["annotations"], ranked, strict=True):
        annotation["rank"] = found.rank
        annotation["urgent_risk"] = found.lesion.urgent_risk
    limits = (NOT_A_DIAGNOSIS, result.no_urgent_risk, result.scope.text)
    tables["info"] = {"description": " ".join(text for text in limits if text)}
    write_json(folder / COCO, tables)
