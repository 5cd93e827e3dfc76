"""Pascal VOC files, as skindx 0.2 wrote them."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

from skindx.core.errors import UserError
from skindx.data.box import BoxedImage
from skindx.data.boxes.box_file import place

ANNOTATIONS, PICTURES = "Annotations", "JPEGImages"
_NO_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_voc(
    folder: Path, images: Mapping[str, BoxedImage], files: Mapping[str, Path], *, copy: bool = False
) -> None:
    """Write Annotations/*.xml, and JPEGImages/ with a link or a copy of each image."""
    place(folder / PICTURES, {name: files[name] for name in images}, copy=copy)
    (folder / ANNOTATIONS).mkdir()
    for name, image in images.items():
        tree = ET.ElementTree(_annotation(name, image))
        ET.indent(tree)
        target = folder / ANNOTATIONS / f"{Path(name).stem}.xml"
        tree.write(target, encoding="utf-8", xml_declaration=True)


def _annotation(name: str, image: BoxedImage) -> ET.Element:
    root = ET.Element("annotation")
    _add(root, "folder", PICTURES)
    _add(root, "filename", name)
    _add(root, "sha256", image.sha256)
    size = ET.SubElement(root, "size")
    for tag, value in (("width", image.width), ("height", image.height), ("depth", 3)):
        _add(size, tag, str(value))
    _add(root, "segmented", "0")
    for box in image.boxes:
        element = ET.SubElement(root, "object")
        _add(element, "name", box.label)
        _add(element, "pose", "Unspecified")
        _add(element, "truncated", "0")
        _add(element, "difficult", "0")
        bndbox = ET.SubElement(element, "bndbox")
        corners = {"xmin": box.x1 + 1, "ymin": box.y1 + 1, "xmax": box.x2, "ymax": box.y2}
        for tag, corner in corners.items():
            _add(bndbox, tag, decimal(corner))
        _add(element, "drawn_by", box.drawn_by)
        _add(element, "drawn_at", box.drawn_at)
        _add(element, "score", "" if box.score is None else repr(box.score))
    return root


def decimal(pixels: float) -> str:
    """Return a coordinate with as many of six decimals as it needs."""
    return f"{pixels:.6f}".rstrip("0").rstrip(".")


def xml_text(text: str) -> str:
    """Return a text that XML can hold. Raises UserError for any other."""
    if _NO_XML.search(text):
        raise UserError(f"{text!r} holds a character that XML cannot; rename it, or export COCO.")
    return text


def _add(parent: ET.Element, tag: str, text: str) -> None:
    if xml_text(text):
        ET.SubElement(parent, tag).text = text
