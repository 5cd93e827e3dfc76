"""CVAT's XML 1.1 for images: one file for all images of a task, corners in pixels from 0.

The format is https://docs.cvat.ai/docs/other/xml_format. CVAT names every image of a task, whether
somebody looked at it or not; since 2022 it turns photos as EXIF says and gives the turned size.
"""

import math
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path

from skindx.core.atomic_files import write_text
from skindx.core.errors import UserError
from skindx.data.box import BoxedImage, RawBox, boxed, sha256_in
from skindx.data.boxes.box_file import UNLABELLED, BoxEntry, BoxFile, BoxRules, score_of
from skindx.data.boxes.voc import decimal, read_xml, root_tag, xml_text

ROOT, ANNOTATIONS = "annotations", "annotations.xml"
_RULES = BoxRules()
_SHAPES = ("polygon", "polyline", "points", "ellipse", "cuboid", "mask", "skeleton")


def is_cvat(path: Path) -> bool:
    """Tell whether a file is CVAT's XML, or a folder holds one as CVAT exports it."""
    if path.suffix == ".xml":
        return path.is_file() and root_tag(path) == ROOT
    return (path / ANNOTATIONS).is_file()


def read_cvat(path: Path, rules: BoxRules = _RULES) -> BoxFile:
    """Read a CVAT file "for images", or the folder that holds it as annotations.xml.

    An image without shapes counts as `rules.unannotated` says, except in our own exports. A rotated
    box gives the upright one around it; other shapes count as refused. Raises UserError.
    """
    source = path / ANNOTATIONS if path.is_dir() else path
    try:
        root = read_xml(source)
    except ValueError as error:
        raise UserError(
            f"{source} is not valid XML ({error}); export it again from CVAT."
        ) from None
    if root.tag != ROOT or root.find("track") is not None:
        what = "for video" if root.tag == ROOT else f"<{root.tag[:40]}>"
        raise UserError(f"{source} is {what}; export again in CVAT as `CVAT for images 1.1`.")
    file = BoxFile(path)
    for number, element in enumerate(root.findall("image"), start=1):
        name = element.get("name", "").strip()
        try:
            if not name:
                raise ValueError("an image without name")
            size = int(_number(element, "width")), int(_number(element, "height"))
            if min(size) < 1:
                raise ValueError(f"an image of {size[0]} x {size[1]} pixels")
        except ValueError as error:
            file.skip(str(error), name or f"image {number}")
            continue
        drawn, unread = [], 0
        for shape in element.findall("box"):
            try:
                drawn.append(_raw(shape, path.name))
            except ValueError as error:
                unread += 1
                file.skip(str(error), name)
        others = sum(shape.tag in _SHAPES for shape in element)
        ours = element.get("sha256", "")
        if not (drawn or unread or others or ours or rules.unannotated == "negative"):
            file.wait(UNLABELLED, name)
            continue
        image = boxed(size, drawn, sha256_in(ours or name), unread, others)
        file.entries.append(BoxEntry((name,), image, frame="upright" if ours else "sized"))
    file.drop_repeated()
    return file


def write_cvat(path: Path, images: Mapping[str, BoxedImage], labels: Sequence[str]) -> None:
    """Write file name -> image, atomically; a task whose labels are `labels` takes it."""
    root = ET.Element(ROOT)
    ET.SubElement(root, "version").text = "1.1"
    task = ET.SubElement(ET.SubElement(root, "meta"), "task")
    ET.SubElement(task, "size").text = str(len(images))
    ET.SubElement(task, "mode").text = "annotation"
    known = ET.SubElement(task, "labels")
    for label in labels:
        ET.SubElement(ET.SubElement(known, "label"), "name").text = xml_text(label)
    for number, (name, image) in enumerate(images.items()):
        facts = {"id": str(number), "name": xml_text(name), "sha256": image.sha256}
        facts |= {"width": str(image.width), "height": str(image.height)}
        element = ET.SubElement(root, "image", {k: text for k, text in facts.items() if text})
        for box in image.boxes:
            corners = {"xtl": box.x1, "ytl": box.y1, "xbr": box.x2, "ybr": box.y2}
            shape = ET.SubElement(
                element,
                "box",
                {"label": xml_text(box.label), "source": "manual", "occluded": "0"}
                | {key: decimal(corner) for key, corner in corners.items()}
                | {"z_order": "0"},
            )
            score = "" if box.score is None else repr(box.score)
            more = {"drawn_by": box.drawn_by, "drawn_at": box.drawn_at, "score": score}
            for key, text in more.items():
                if text:
                    ET.SubElement(shape, "attribute", name=key).text = xml_text(text)
    ET.indent(root)
    write_text(path, f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, "unicode")}\n')


def _number(element: ET.Element, key: str, default: str = "") -> float:
    try:
        number = float(element.get(key, default))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{element.tag}: {key} is not a number")
    return number


def _raw(shape: ET.Element, drawn_by: str) -> RawBox:
    label = shape.get("label", "").strip()
    if not label:
        raise ValueError("a box without label")
    x1, y1, x2, y2 = (_number(shape, key) for key in ("xtl", "ytl", "xbr", "ybr"))
    # Rotation is clockwise about the middle.
    angle = math.radians(_number(shape, "rotation", "0"))
    if angle:
        cos, sin = abs(math.cos(angle)), abs(math.sin(angle))
        w, h = (x2 - x1) * cos + (y2 - y1) * sin, (x2 - x1) * sin + (y2 - y1) * cos
        cx, cy = (x1 + x2) / 2, (y1 + y2) / 2
        x1, y1, x2, y2 = cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2
    more = {each.get("name"): each.text or "" for each in shape.findall("attribute")}
    return RawBox(
        *(x1, y1, x2, y2, label, more.get("drawn_by") or drawn_by),
        score_of(more.get("score")),
        more.get("drawn_at", ""),
    )
