"""COCO JSON of the boxes of published pictures; a picture without a lesion is kept as empty."""

from collections.abc import Sequence
from typing import Any

from skindx.data.publish.row import Row


def coco_json(rows: Sequence[Row], name: str) -> dict[str, Any]:
    """Return COCO's images, annotations, categories and licences of rows that somebody looked at.

    Boxes are x, y, width, height in pixels; a model's box has its score, one that was drawn none.
    """
    seen = [row for row in rows if not row.withheld and row.boxes is not None]
    labels = sorted({box.label for row in seen for box in row.boxes or ()})
    category = {label: number for number, label in enumerate(labels, 1)}
    licences = {row.licence: row.licence_url for row in seen}
    licence = {name: number for number, name in enumerate(sorted(licences), 1)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image_id, row in enumerate(seen, 1):
        images.append(
            {
                "id": image_id,
                "file_name": row.path if row.path.endswith(row.file_name) else row.file_name,
                "width": row.width,
                "height": row.height,
                "license": licence[row.licence],
                "coco_url": row.source_url,
            }
        )
        for box in row.boxes or ():
            x, y, width, height = (
                round(value, 3) for value in (box.x1, box.y1, box.x2 - box.x1, box.y2 - box.y1)
            )
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": category[box.label],
                    "bbox": [x, y, width, height],
                    "area": round(width * height, 3),
                    "iscrowd": 0,
                    "drawn_by": box.drawn_by,
                    "drawn_at": box.drawn_at,
                    **({} if box.score is None else {"score": box.score}),
                }
            )
    return {
        "info": {"description": f"Boxes of {name}"},
        "licenses": [{"id": licence[key], "name": key, "url": licences[key]} for key in licence],
        "images": images,
        "annotations": annotations,
        "categories": [
            {"id": number, "name": label, "supercategory": "skin"}
            for label, number in category.items()
        ],
    }
