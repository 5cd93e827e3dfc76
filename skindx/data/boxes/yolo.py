"""YOLO as ultralytics lays it out: images/, labels/ beside them, and data.yaml with the names.

The last `images` in an image's path is replaced by `labels` to find its boxes, so that
`images/train` as well as Roboflow's `train/images` are read. What data.yaml says of folders is
not followed: it may point anywhere on the reader's disk.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from skindx.config import read_yaml
from skindx.data.box import BoxedImage, RawBox, boxed, put_image, sha256_in
from skindx.errors import UserError
from skindx.files import write_text
from skindx.imaging.silence import hushed

DATA = "data.yaml"


def read_yolo(path: Path) -> dict[str, BoxedImage]:
    """Read a YOLO folder, or its data.yaml: file name -> image.

    An image with an empty label file was looked at and has no box; one without a label file is
    left out. A polygon gives the box around it. Who drew is not in the format: `drawn_by` is the
    folder. Raises UserError.
    """
    root = path.parent if path.suffix in (".yaml", ".yml") else path
    if root.is_file():
        raise UserError(f"{root} is a file; YOLO is a folder with {DATA}: give that folder.")
    names = _names(root / DATA if path == root else path)
    images: dict[str, BoxedImage] = {}
    for image, labels in label_files(root):
        if not labels.is_file():
            continue
        size = _upright_size(image)
        if size is None:
            continue
        drawn = [
            _raw(line, size, names, f"{labels}, line {number}", root.name)
            for number, line in enumerate(_lines(labels), start=1)
            if line.strip()
        ]
        put_image(images, root, image.name, boxed(size, drawn, sha256_in(image.name)))
    if not images:
        raise UserError(
            f"{root} holds no image with a label file; a YOLO folder has images in a folder "
            f"`images` and text files of the same names in a folder `labels` in its place."
        )
    return images


def label_files(root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each file below a folder `images` of `root`, and where its labels would be."""
    for image in sorted(root.rglob("*")):
        parts = image.relative_to(root).parts
        if "images" not in parts[:-1] or image.name.startswith(".") or not image.is_file():
            continue
        last = max(i for i, part in enumerate(parts[:-1]) if part == "images")
        swapped = root.joinpath(*parts[:last], "labels", *parts[last + 1 :])
        yield image, swapped.with_suffix(".txt")


def write_yolo(
    folder: Path,
    splits: Iterable[tuple[str, Mapping[str, BoxedImage]]],
    files: Mapping[str, Path],
    labels: Sequence[str],
    *,
    copy: bool = False,
) -> Path:
    """Write (split, file name -> image) into `folder`; return the path of data.yaml.

    `files` says where each image lies: it is linked, or copied. The class numbers are positions
    in `labels`. Raises UserError for two images whose label files would be one.
    """
    data: dict[str, Any] = {}
    for split, images in splits:
        data[split] = f"images/{split}"
        (folder / "labels" / split).mkdir(parents=True)
        place(folder / "images" / split, {name: files[name] for name in images}, copy=copy)
        for name, image in images.items():
            lines = [
                f"{labels.index(box.label)} "
                f"{(box.x1 + box.x2) / 2 / image.width:.9f} "
                f"{(box.y1 + box.y2) / 2 / image.height:.9f} "
                f"{(box.x2 - box.x1) / image.width:.9f} "
                f"{(box.y2 - box.y1) / image.height:.9f}\n"
                for box in image.boxes
            ]
            (folder / "labels" / split / f"{Path(name).stem}.txt").write_text("".join(lines))
    import yaml

    # Without `path` the folders are looked for beside data.yaml: the whole can be moved.
    data["names"] = list(labels)
    write_text(folder / DATA, yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    return folder / DATA


def place(folder: Path, files: Mapping[str, Path], *, copy: bool) -> None:
    """Put images into a new folder under their names. Raises UserError for equal stems."""
    folder.mkdir(parents=True)
    stems: dict[str, str] = {}
    for name, source in files.items():
        other = stems.setdefault(Path(name).stem, name)
        if other != name:
            raise UserError(f"{other} and {name} would share one file of boxes; rename one.")
        if copy:
            shutil.copyfile(source, folder / name)
        else:
            (folder / name).symlink_to(source.resolve())


def _names(data_yaml: Path) -> dict[int, str]:
    names: Any = read_yaml(data_yaml).get("names")
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict) or not names:
        raise UserError(f"{data_yaml} has no `names`; list the classes there, first that of 0.")
    # Nested lists may be short to write and endless to read (YAML aliases).
    if not all(isinstance(name, str | int | float) for name in names.values()):
        raise UserError(f"{data_yaml}: each of `names` must be one word or number; correct it.")
    try:
        return {int(number): str(name) for number, name in names.items()}
    except (TypeError, ValueError):
        raise UserError(f"{data_yaml}: the keys of `names` must be whole numbers.") from None


def _lines(labels: Path) -> list[str]:
    try:
        return labels.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{labels} cannot be read ({error}); correct or remove it.") from None


def _raw(
    line: str, size: tuple[int, int], names: Mapping[int, str], where: str, drawn_by: str
) -> RawBox:
    """Parse `class cx cy w h`, with a score after it, or a polygon `class x1 y1 x2 y2 x3 y3 …`."""
    width, height = size
    words = line.split()
    try:
        values = [float(word) for word in words[1:]]
        label = names[int(words[0])]
        score = None
        if len(values) >= 6 and len(values) % 2 == 0:
            xs, ys = values[::2], values[1::2]
            x1, y1, x2, y2 = min(xs), min(ys), max(xs), max(ys)
        else:
            cx, cy, w, h, *scores = values
            x1, y1, x2, y2 = cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2
            score = scores[0] if scores else None
    except KeyError:
        raise UserError(f"{where}: class {words[0]} is not in `names` of {DATA}.") from None
    except ValueError:
        raise UserError(
            f"{where}: {line[:60]!r} must be `class x y width height` in shares of the image."
        ) from None
    return RawBox(x1 * width, y1 * height, x2 * width, y2 * height, label, drawn_by, score)


def _upright_size(path: Path) -> tuple[int, int] | None:
    """Return (width, height) turned as EXIF says, None for what is no image."""
    from PIL import Image

    from skindx.imaging.cost import check_size
    from skindx.imaging.decode import FORMATS, MAX_PIXELS  # numpy: not for a crawl

    try:
        with hushed(), Image.open(path, formats=tuple(FORMATS.values())) as image:
            check_size(*image.size, MAX_PIXELS)  # looking for EXIF may decode
            turned = image.getexif().get(274, 1) in (5, 6, 7, 8)
            return image.size[::-1] if turned else image.size
    except Exception:
        # The build itself says what is wrong with the image; here it only has no boxes.
        return None
