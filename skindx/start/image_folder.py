"""A folder of images before a dataset is built of it: classes, sizes, doubtful files, faces.

All names are counted. Of a large folder only some files are opened, and some images are decoded,
in processes with limits; what is said of these is a sample, and is called one.
"""

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from skindx.core.errors import UserError
from skindx.core.machine import cpu_count, missing_modules
from skindx.core.progress import Progress, silent
from skindx.core.text import counted
from skindx.data.labels import keys_of, taxonomy_of
from skindx.data.placeholders import is_no_label
from skindx.data.screening.screen import Screened, ScreenSettings, screen_files
from skindx.data.sources.files import FileColumns, FilesSource
from skindx.data.sources.folder import (
    NOT_OPENED,
    FolderFile,
    FolderLayout,
    FolderSource,
    look_at,
    look_at_folder,
    visible,
)
from skindx.data.tables.fields import LEFT_OUT
from skindx.data.tables.reader import read_table
from skindx.imaging.photo_gates import modality_features, shipped
from skindx.imaging.sandboxed_images import decode_limited
from skindx.imaging.skin_content import DESCRIPTIONS
from skindx.taxonomy import Urgency, taxonomy_names
from skindx.taxonomy.label_matches import described, load_shipped, without_urgency

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPENED = 400
"""Files of a folder that are opened at most."""
DECODED, SEEN = 64, 12
"""Images that are decoded, and of these the ones in which faces are looked for."""
_SURE = 0.8
"""Share of the sample from which it counts as of one modality."""
_PATTERNS = (r"^([A-Za-z]*\d+)[_-]", r"^([A-Za-z]+[_-]?\d+)[_-]")
"""How patients or lesions are named in front of a file's own number."""
_HAM10000, _IDS = {"lesion_id", "dx", "dx_type"}, ("image_id", "image")
"""By these columns a table is that of HAM10000, whatever its name."""
_HAM_IMAGES, _HEADER_BYTES = 10_015, 4096
_DATE = re.compile(r"(19|20)\d{6}")


@dataclass(frozen=True)
class ImageFolder:
    """What a folder holds."""

    path: Path
    files: tuple[FolderFile, ...]
    merged: tuple[str, ...]
    """Split folders that a build reads as one."""
    sample: tuple[FolderFile, ...] = ()
    screened: tuple[Screened, ...] = ()
    """The verdict on each image of the sample."""
    screen_s: float = 0.0
    """Seconds of one core for an image."""
    modality: str = ""
    """dermoscopic, clinical or mixed, by the sample; "": not looked at."""
    faces: int | None = None
    """Images with a face among `SEEN` of the sample; None: not looked for."""
    seen: int = 0
    table: FilesSource | None = None
    """Of HAM10000: its table and the folders of its images; None: each folder is a class."""
    lesions: int = 0

    @cached_property
    def counts(self) -> Counter[str]:
        """Class folder -> images; a folder such as *unknown* is no class."""
        stored = (file.label for file in self.files if file.status == "stored")
        return Counter(label for label in stored if not is_no_label(label))

    @property
    def images(self) -> int:
        return self.counts.total()

    @property
    def sound(self) -> list[tuple[FolderFile, Screened]]:
        pairs = zip(self.sample, self.screened, strict=True)
        return [(file, verdict) for file, verdict in pairs if verdict.reason is None]

    @property
    def mean_bytes(self) -> float:
        sizes = [file.path.stat().st_size for file in self.sample if file.path.is_file()]
        return float(np.mean(sizes)) if sizes else 0.0

    @property
    def side(self) -> int:
        """The median of the shorter sides of the sample, pixels; 0: no image is sound."""
        sides = [min(verdict.width, verdict.height) for _, verdict in self.sound]
        return int(np.median(sides)) if sides else 0

    @property
    def group_pattern(self) -> str:
        """The regular expression that finds patients or lesions in the file names; "": none."""
        names = [file.path.name for file in self.files if file.status == "stored"]
        return next((pattern for pattern in _PATTERNS if _groups(pattern, names)), "")

    def dangerous(self) -> dict[str, str]:
        """Return the classes without urgency that look like a cancer or an emergency, and which."""
        return without_urgency(described(keys_of(self.counts)))

    def known_by(self) -> list[str]:
        """Return the shipped taxonomies that know all classes."""
        shipped_lists = {name: load_shipped(name) for name in taxonomy_names()}
        return [name for name, one in shipped_lists.items() if all(map(one.recognise, self.counts))]

    def matches(self, urgencies: dict[str, Urgency]) -> list[str]:
        """Return what each class was taken for, in sentences. Raises UserError."""
        return taxonomy_of(self.counts, self.path.name, urgencies)[1]

    def lines(self) -> list[str]:
        """Return what was found, in sentences; the classes come from `matches`."""
        counts = self.counts
        (largest, most), (smallest, least) = counts.most_common()[0], counts.most_common()[-1]
        sizes = f"{most:,} each"
        if most > least:
            sizes = f"the largest is {largest} ({most:,}), the smallest {smallest} ({least:,})"
        lines = [f"{self.path}: {self.images:,} images in {len(counts)} class folders; {sizes}."]
        if self.table:
            found = f"{self.images:,} of {_HAM_IMAGES:,} images found"
            lines = [
                f"{self.path} is HAM10000 by the columns of {self.table.path.name}: {found}, of "
                f"{counted(self.lesions, 'lesion')}, {self.table.licence}; {sizes}.",
                *self.table.preview().notes,
            ]
        if self.merged:
            lines.append(f"{' and '.join(self.merged)} are merged; the split is made again.")
        if closed := sum(file.detail == NOT_OPENED for file in self.files):
            lines.append(
                f"{closed:,} files were counted by their names alone: at most {OPENED} of a folder "
                "are opened here, and all of them by the build."
            )
        odd = Counter(file.status for file in self.files if file.status != "stored")
        for status, count in odd.most_common():
            example = next(file for file in self.files if file.status == status)
            lines.append(f"{counted(count, 'file')} {status}, such as {example.path.name}.")
        return [*lines, *self._of_the_sample()]

    def _of_the_sample(self) -> list[str]:
        of = f"of {len(self.sample)} images looked at"
        refused = Counter(verdict.reason for verdict in self.screened if verdict.reason)
        lines = []
        if self.sound:
            widths = [(verdict.width, verdict.height) for _, verdict in self.sound]
            small, large = min(widths), max(widths)
            lines.append(
                f"Sizes {of}: {small[0]} x {small[1]} to {large[0]} x {large[1]} pixels, "
                f"{self.mean_bytes / 1e6:.2g} MB each."
            )
        if refused:
            reasons = ", ".join(f"{count} {reason}" for reason, count in refused.most_common())
            lines.append(f"A build would leave out {refused.total()} {of}: {reasons}.")
        shows = Counter(verdict.shows for _, verdict in self.sound if verdict.shows)
        if shows:
            kinds = ", ".join(f"{count} {DESCRIPTIONS[one]}" for one, count in shows.most_common())
            lines.append(f"{shows.total()} {of} may show no skin: {kinds}.")
        if self.faces is None:
            lines.append("Faces were not looked for; skindx audit does so after the build.")
        else:
            lines.append(
                f"{self.faces or 'No'} face{'' if self.faces == 1 else 's'} in {self.seen} images; "
                "skindx audit looks at all of them."
            )
        return lines


def look(folder: Path, progress: Progress = silent) -> ImageFolder:
    """Look at a folder of class folders; nothing is written.

    Raises UserError for a folder that no dataset can come from, as a build does.
    """
    table, lesions = ham10000_in(folder), 0
    if table:
        layout, lesions = _look_at_table(table)
    else:
        layout = look_at_folder(FolderSource(path=folder), OPENED)
    stored = [file for file in layout.files if file.status == "stored"]
    closed = {f.label for f in layout.files if f.status == "unreadable"} - {f.label for f in stored}
    if closed:
        raise UserError(
            f"no image of the class {min(closed)!r} in {folder} can be read; check its permissions."
        )
    sample = _spread(stored, DECODED)
    progress("look", 0, len(sample))
    workers, stamps = min(cpu_count(), len(sample)), [time.monotonic()]

    def report(done: int, total: int) -> None:
        stamps.append(time.monotonic())
        progress("look", done, total)

    paths = [file.path for file in sample]
    screened = screen_files(paths, ScreenSettings(), (), workers=workers, on_progress=report)
    first = 1 if len(stamps) > 2 else 0  # the first answer waits for processes to start
    screen_s = workers * (stamps[-1] - stamps[first]) / max(1, len(sample) - first)
    known = ImageFolder(folder, layout.files, layout.merged, tuple(sample), tuple(screened))
    pixels = [decode_limited(file.path.read_bytes()) for file, _ in known.sound[:: DECODED // SEEN]]
    modality = _modality(pixels)
    faces = None if modality == "dermoscopic" else _faces(pixels)
    return ImageFolder(
        *(folder, layout.files, layout.merged, tuple(sample), tuple(screened), screen_s, modality),
        faces=faces,
        seen=len(pixels),
        table=table,
        lesions=lesions,
    )


def ham10000_in(folder: Path) -> FilesSource | None:
    """Return HAM10000's table in a folder with the folders of its images; None: there is none."""
    for file in visible(folder) if folder.is_dir() else ():
        if file.suffix.lower() not in (".csv", ".tab", ".tsv", ".txt", "") or not file.is_file():
            continue
        try:
            with file.open("rb") as stream:
                header = stream.readline(_HEADER_BYTES).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError):
            continue
        names = {name.strip().strip('"') for name in re.split("[,;\t]", header)}
        column = next((one for one in _IDS if one in names), "")
        if column and names >= _HAM10000:
            return _ham10000(folder.resolve(), file.name, column)
    return None


def _ham10000(folder: Path, table: str, column: str) -> FilesSource:
    facts = {"file": column, "label": "dx", "confirmed": "dx_type", "age": "age", "sex": "sex"}
    none = dict.fromkeys(("licence", "attribution", "group", "skin_type"), "")
    settings = {
        "kind": "files",
        "path": folder / table,
        "files": ["HAM10000_images_part_1/{}.jpg", "HAM10000_images_part_2/{}.jpg"],
        "modality": "dermoscopic",
        "licence": "CC BY-NC 4.0",
        "attribution": "HAM10000, Tschandl, Rosendahl and Kittler, Scientific Data 2018",
        "creator": "ViDIR group, Medical University of Vienna, and Cliff Rosendahl",
        "columns": {**facts, "site": "localization", **none},
    }
    known = {str(line[column]) for line in read_table(folder / table, FileColumns(**facts, **none))}
    below = [folder, *(one for one in visible(folder) if one.is_dir())]
    below += [one for top in below[1:] for one in visible(top) if one.is_dir()]
    places = [
        (one.relative_to(folder) / "{}.jpg").as_posix()
        for one in below
        if any(file.suffix == ".jpg" and file.stem in known for file in visible(one))
    ]
    return FilesSource.parse({**settings, "files": places or settings["files"]})


def _look_at_table(table: FilesSource) -> tuple[FolderLayout, int]:
    """Return the images that are there, with the class of each, and the number of lesions."""
    files, lesions = [], set()
    file = table.columns.file
    known = FileColumns(file=file, label="dx", group="lesion_id")
    lesion_of = {line[file]: line["lesion_id"] for line in read_table(table.table, known)}
    lines = table.lines()
    every = max(1, len(lines) // OPENED)
    for number, line in enumerate(line for line in lines if LEFT_OUT not in line):
        path, label = table.root / table.file_of(line), str(line.get("dx"))
        if path.is_file():
            lesions.add(lesion_of[line[file]])
            closed = FolderFile(path, label, "stored", NOT_OPENED)
            files.append(closed if number % every else look_at(path, label, table.root))
    return FolderLayout((), tuple(files)), len(lesions)


def _spread(files: Sequence[FolderFile], most: int) -> list[FolderFile]:
    """Return up to `most` files, evenly spread over the classes and within each."""
    by_label: dict[str, list[FolderFile]] = {}
    for file in files:
        by_label.setdefault(file.label, []).append(file)
    share = max(1, most // max(1, len(by_label)))
    chosen = [
        file
        for same in by_label.values()
        for file in same[:: max(1, -(-len(same) // share))][:share]
    ]
    return chosen[:most] if len(by_label) <= most else chosen[:: -(-len(chosen) // most)]


def _modality(images: "Sequence[NDArray[np.uint8]]") -> str:
    if not images:
        return ""
    scores_N = shipped().score(np.stack([modality_features(pixels) for pixels in images]))
    clinical = float((scores_N > 0).mean())
    kinds = ((clinical >= _SURE, "clinical"), (clinical <= 1 - _SURE, "dermoscopic"))
    return next((kind for holds, kind in kinds if holds), "mixed")


def _faces(images: "Sequence[NDArray[np.uint8]]") -> int | None:
    if not images or missing_modules("nudenet", "rapidocr_onnxruntime", "onnxruntime"):
        return None
    from skindx.review.privacy_audit import PrivacyDetector, PrivacySettings

    detector = PrivacyDetector(PrivacySettings())
    return sum(
        any(sighting.reason == "face" for sighting in detector.bodies(pixels)) for pixels in images
    )


def _groups(pattern: str, names: Sequence[str]) -> bool:
    """Tell whether a pattern ties most names into groups of a few, and is no date."""
    found = [match[1] for name in names if (match := re.search(pattern, name))]
    groups = Counter(found)
    if len(found) < 0.9 * len(names) or len(groups) < 3 or all(map(_DATE.fullmatch, groups)):
        return False
    return 1.1 * len(groups) <= len(found) <= 30 * len(groups)
