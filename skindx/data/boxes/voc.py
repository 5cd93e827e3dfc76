"""Pascal VOC: one XML an image. Pixels count from 1 and the last one is inside (VOC devkit).

So xmin = x1 + 1 and xmax = x2. Coordinates are written with their fractions, which the devkit's
own files do not have but its readers take; supervision's writer rounds them to whole pixels.
"""

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

from skindx.core.atomic_files import below
from skindx.core.errors import UserError
from skindx.core.machine import how_to_install
from skindx.core.text import folded_name
from skindx.data.box import BoxedImage, RawBox, base_name, boxed, sha256_in
from skindx.data.boxes.box_file import BoxEntry, BoxFile, BoxRules, Frame, place, score_of

ANNOTATIONS, PICTURES = "Annotations", "JPEGImages"
_RULES = BoxRules()
_TAG = re.compile(rb"<([A-Za-z_][A-Za-z0-9_.-]*)")
_AROUND = re.compile(r"^[0-9a-f]{8}-(?=.)|\.(jpe?g|jfif|png|webp|bmp|tiff?|gif|heic|heif)$")
_RENAMED = "a file whose `filename` is another image than its name, as of one that was renamed"
_NO_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class NoXmlError(ValueError):
    """What is no XML, with the parser's message."""


def read_voc(path: Path, rules: BoxRules = _RULES) -> BoxFile:
    """Read a folder of VOC XML files, or one file.

    A file without objects is a reviewed image without boxes; what `rules` say has no place here.
    Files that cannot be used, and objects without name or box, are left out and counted.
    Entities are refused, so no file can blow up or reach out (billion laughs, external entities).
    Raises UserError where there is no XML.
    """
    files = [path] if path.is_file() else below(path, "*.xml")
    if not files:
        raise UserError(f"{path} has no XML file; give a folder of Pascal VOC annotations.")
    read = BoxFile(path)
    for file in files:
        shown = file.name if file == path else file.relative_to(path).as_posix()
        try:
            root = read_xml(file)
            size = (_pixels(root, "size/width"), _pixels(root, "size/height"))
        except NoXmlError as error:
            read.skip("a file that cannot be read as XML", f"{shown} ({error})")
            continue
        except (ValueError, OverflowError) as error:
            read.skip(f"a file that is no Pascal VOC annotation ({error})", shown)
            continue
        drawn, unread = [], 0
        for element in root.findall("object"):
            try:
                drawn.append(_raw(element, path.name))
            except (ValueError, OverflowError) as error:
                unread += 1
                read.skip(str(error), shown)
        paths = _paths(root, file, path)
        ours = root.findtext("sha256") or ""
        sha256 = sha256_in(ours or paths[0])
        image = boxed(size, drawn, sha256, unread)
        frame: Frame = "upright" if ours else "sized"
        also = _other_names(root, file, paths)
        read.entries.append(BoxEntry(paths, image, frame=frame, also=also))
    _drop_doubtful(read)
    read.drop_repeated()
    return read


def _other_names(root: ET.Element, file: Path, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the XML file and of its `path` that its `filename` is not."""
    long = base_name((root.findtext("path") or "").strip())
    known = {_plain(path) for path in paths}
    return tuple(name for name in (file.stem, long) if name and _plain(name) not in known)


def _plain(name: str) -> str:
    """Return a file name as it is compared here: folded, without ending and upload's prefix."""
    return _AROUND.sub("", folded_name(base_name(name)))


def _drop_doubtful(read: BoxFile) -> None:
    """Leave out files named otherwise than their image where most are named as theirs."""
    other = [entry for entry in read.entries if entry.also and not entry.image.sha256]
    if other and 2 * len(other) < len(read.entries):
        read.entries = [entry for entry in read.entries if not entry.also or entry.image.sha256]
        for entry in other:
            read.skip(_RENAMED, f"{entry.also[0]} ({entry.name})")


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


def root_tag(file: Path) -> str:
    """Return the first tag of an XML file, "" where there is none; the rest is not read."""
    with file.open("rb") as opened:
        match = _TAG.search(opened.read(4096))
    return match.group(1).decode() if match else ""


def decimal(pixels: float) -> str:
    """Return a coordinate with as many of six decimals as it needs."""
    return f"{pixels:.6f}".rstrip("0").rstrip(".")


def xml_text(text: str) -> str:
    """Return a text that XML can hold. Raises UserError for any other."""
    if _NO_XML.search(text):
        raise UserError(
            f"{text!r} contains a character that XML cannot store; rename it, or use --format coco."
        )
    return text


def _add(parent: ET.Element, tag: str, text: str) -> None:
    if xml_text(text):
        ET.SubElement(parent, tag).text = text


def read_xml(file: Path) -> ET.Element:
    """Return the root of an XML file; ValueError for one that declares a type or entities.

    Raises NoXmlError for what is no XML, and UserError without defusedxml.
    """
    try:
        from defusedxml import DefusedXmlException
        from defusedxml.ElementTree import ParseError, parse
    except ImportError:
        raise UserError(
            "reading XML needs the package defusedxml, which is not installed; run "
            f"{how_to_install('data')}."
        ) from None
    try:
        root = parse(file, forbid_dtd=True).getroot()
    except DefusedXmlException:
        raise ValueError("the XML declares a document type or entities") from None
    except (ParseError, OSError, ValueError, LookupError) as error:
        raise NoXmlError(str(error)) from None
    assert isinstance(root, ET.Element)
    return root


def _paths(root: ET.Element, file: Path, folder: Path) -> tuple[str, ...]:
    """Return the names of the image: by the file's place, its `path`, its `folder`."""
    name = (root.findtext("filename") or "").strip()
    long = (root.findtext("path") or "").strip()
    name = name or base_name(long) or file.stem
    above = (root.findtext("folder") or "").strip()
    # A copy of Annotations/a/x.xml says that the image is in a folder a, too.
    inner = file.parent.relative_to(folder).parts if file != folder else ()
    inner = tuple(part for part in inner if part != ANNOTATIONS)
    beside = "/".join((*inner, base_name(name)))
    paths = [beside if inner else name]
    if long and base_name(long) == base_name(name):
        paths.append(long)
    if above:
        paths.append(f"{above}/{base_name(name)}")
    return tuple(dict.fromkeys((*paths, name)))


def _pixels(root: ET.Element, tag: str) -> int:
    value = int(_number(root, tag))
    if value < 1:
        raise ValueError(f"{tag} is {value}")
    return value


def _number(parent: ET.Element, tag: str) -> float:
    text = parent.findtext(tag)
    if text is None:
        raise ValueError(f"no {tag}")
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{tag} is no number")
    return number


def _raw(element: ET.Element, drawn_by: str) -> RawBox:
    label = (element.findtext("name") or "").strip()
    if not label:
        raise ValueError("an object without name")
    x1, y1, x2, y2 = (_number(element, f"bndbox/{tag}") for tag in ("xmin", "ymin", "xmax", "ymax"))
    score = element.findtext("score")
    return RawBox(
        x1 - 1,
        y1 - 1,
        x2,
        y2,
        label,
        element.findtext("drawn_by") or drawn_by,
        score_of(score),
        element.findtext("drawn_at") or "",
    )
