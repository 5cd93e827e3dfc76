"""The results of a scan as files: a list of lesions, and the maps of scores where wanted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import write_json
from skindx.diagnosis.scope import NO_URGENT_CLASSES, Scope, urgent_known
from skindx.scan.lesion import Lesion, ScannedPhoto
from skindx.taxonomy import SkinClass

LESIONS = "lesions.json"


def write_lesion_list(
    out: Path, photos: Sequence[ScannedPhoto], problems: Sequence[str], classes: Sequence[SkinClass]
) -> None:
    """Write OUT/lesions.json; `classes` are those of the probabilities."""
    keys = [skin_class.key for skin_class in classes]
    write_json(
        out / LESIONS,
        {
            "photos": [_photo(photo, keys) for photo in photos],
            "problems": list(problems),
            "no_urgent_risk": "" if urgent_known(classes) else NO_URGENT_CLASSES,
            "not_known": Scope.of(classes).text,
        },
    )


def _photo(photo: ScannedPhoto, keys: Sequence[str]) -> dict[str, Any]:
    return {
        "name": photo.name,
        "sha256": photo.sha256,
        "width": photo.width,
        "height": photo.height,
        "tiles": photo.tiles,
        "tiles_without_skin": photo.tiles_without_skin,
        "failed_tiles": photo.failed_tiles,
        "lesions": [_lesion(lesion, keys) for lesion in photo.lesions],
    }


def _lesion(lesion: Lesion, keys: Sequence[str]) -> dict[str, Any]:
    box = lesion.box
    return {
        "box": [round(corner, 2) for corner in (box.x1, box.y1, box.x2, box.y2)],
        "label": box.label,
        "score": box.score,
        "urgent_risk": lesion.urgent_risk,
        "urgent": lesion.urgent,
        "possible": list(lesion.possible),
        "probabilities": dict(zip(keys, map(float, lesion.probabilities_C), strict=True)),
        "ood_p_value": lesion.ood_p_value,
        "colour_lab": [round(part, 3) for part in lesion.colour_lab],
    }
