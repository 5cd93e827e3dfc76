"""COCO JSON of the boxes of published pictures; a picture without a lesion is kept as empty."""

from collections.abc import Sequence
from typing import Any

from skindx.data.box import BoxedPicture
from skindx.data.boxes.coco import coco_json
from skindx.data.publish.row import Row


def published_coco(rows: Sequence[Row], name: str) -> dict[str, Any]:
    """Return COCO's tables of the published rows that somebody looked at, with their licences."""
    seen = [row for row in rows if not row.withheld and row.boxes is not None]
    pictures = {_name(row): BoxedPicture(row.width, row.height, row.boxes or ()) for row in seen}
    tables = coco_json(pictures)
    urls = {row.licence: row.licence_url for row in seen}
    licence = {key: number for number, key in enumerate(sorted(urls), 1)}
    for image, row in zip(tables["images"], seen, strict=True):
        image.update(sha256=row.sha256, license=licence[row.licence], coco_url=row.source_url)
    licences = [{"id": licence[key], "name": key, "url": urls[key]} for key in licence]
    return {"info": {"description": f"Boxes of {name}"}, "licenses": licences, **tables}


def _name(row: Row) -> str:
    return row.path if row.path.endswith(row.file_name) else row.file_name
