"""The formats of box files: one name each, and what a file's content says which it is."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.data.boxes.box_file import BoxFile, Columns, Rules, Unannotated
from skindx.data.boxes.coco import read_coco, read_json
from skindx.data.boxes.labelstudio import read_labelstudio
from skindx.data.boxes.voc import read_voc
from skindx.data.boxes.yolo import DATA, read_yolo

BoxFormat = Literal["coco", "yolo", "voc", "labelstudio"]

READERS: Mapping[BoxFormat, Callable[[Path, Rules], BoxFile]] = {
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
    unannotated: Unannotated = Field("skip", exclude_if=lambda value: value == "skip")
    """Images that a COCO file names without annotation, or a YOLO folder has without label file.

    skip: nobody looked at them; negative: somebody did, and there is no lesion."""
    columns: Columns | None = Field(None, exclude_if=lambda value: value is None)
    """What YOLO lines of six and more values after the class are, where the folder does not tell.

    box: each begins with a box, and the rest does not count; polygon: each is one."""
    strict: bool = Field(False, exclude_if=lambda value: not value)
    """Refuse the file for a row that cannot be used; otherwise it is left out and counted."""

    @model_validator(mode="before")
    @classmethod
    def _bare_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str | Path) else value

    def read(self) -> BoxFile:
        """Read the boxes of any format. Raises UserError, also where none of them can be used."""
        kind = self.kind or format_of(self.path)
        self.check(kind)
        file = READERS[kind](self.path, Rules(self.unannotated, self.columns))
        file.check(strict=self.strict)
        return file

    def check(self, kind: BoxFormat) -> None:
        """Raise UserError for what the format has no place for."""
        if self.columns and kind != "yolo":
            raise UserError(f"{kind} has no columns; leave out --columns (boxes.columns).")
        if self.unannotated == "negative" and kind not in ("coco", "yolo"):
            raise UserError(
                f"{kind} itself says which images were looked at; leave out --unannotated "
                f"(boxes.unannotated)."
            )


def read_boxes(source: BoxSource) -> BoxFile:
    """Read boxes of any format. Raises UserError."""
    return source.read()


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
