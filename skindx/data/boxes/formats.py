"""The formats of box files: one name each, and what a file's content says which it is."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from skindx.config import Settings
from skindx.data.box import BoxedImage
from skindx.data.boxes.coco import read_coco, read_json
from skindx.data.boxes.labelstudio import read_labelstudio
from skindx.data.boxes.voc import read_voc
from skindx.data.boxes.yolo import DATA, read_yolo
from skindx.errors import UserError

BoxFormat = Literal["coco", "yolo", "voc", "labelstudio"]

READERS: Mapping[BoxFormat, Callable[[Path], dict[str, BoxedImage]]] = {
    "coco": read_coco,
    "yolo": read_yolo,
    "voc": read_voc,
    "labelstudio": read_labelstudio,
}


class BoxSource(Settings):
    """A file or folder of boxes; a bare path in a recipe is one, too."""

    path: Path
    kind: BoxFormat | None = None
    """null: detected from the content."""

    @model_validator(mode="before")
    @classmethod
    def _bare_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str | Path) else value


def read_boxes(source: BoxSource) -> dict[str, BoxedImage]:
    """Read boxes of any format: file name (without folders) -> image. Raises UserError."""
    return READERS[source.kind or format_of(source.path)](source.path)


def format_of(path: Path) -> BoxFormat:
    """Return the format that a file's or folder's content shows. Raises UserError."""
    if not path.exists():
        raise UserError(f"{path} does not exist; give a file or folder of boxes.")
    if path.is_dir():
        if (path / DATA).is_file():
            return "yolo"
        if any(path.rglob("*.xml")):
            return "voc"
    elif path.suffix in (".yaml", ".yml"):
        return "yolo"
    elif path.suffix == ".xml":
        return "voc"
    else:
        return "labelstudio" if isinstance(read_json(path), list) else "coco"
    raise UserError(
        f"{path} holds neither {DATA} (YOLO) nor XML files (Pascal VOC); COCO and Label Studio are "
        f"single JSON files: give one of them."
    )
