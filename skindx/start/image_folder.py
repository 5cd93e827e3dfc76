"""A folder of images before a dataset is built of it: classes, sizes, doubtful files, faces.

All names are counted. Of a large folder only some files are opened, and some images are decoded,
in processes with limits; what is said of these is a sample, and is called one.
"""

import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from skindx.core.errors import UserError
from skindx.core.machine import cpu_count, missing_modules
from skindx.core.progress import Progress, silent
from skindx.core.text import counted
from skindx.data.labels import keys_of, taxonomy_of
from skindx.data.layouts.folder_contents import FolderContents
from skindx.data.layouts.image_places import ImageIndex
from skindx.data.layouts.known_layouts import KnownLayout
from skindx.data.placeholders import is_no_label
from skindx.data.screening.screen import Screened, ScreenSettings, screen_files
from skindx.data.sources.folder import (
    MAX_BYTES,
    NOT_OPENED,
    FolderFile,
    FolderSource,
    look_at_folder,
)
from skindx.data.tables.archives import DAMAGED, ArchiveFiles
from skindx.imaging.photo_gates import modality_features, shipped
from skindx.imaging.sandboxed_images import decode_limited
from skindx.imaging.skin_content import DESCRIPTIONS
from skindx.start.class_folders import FOLDERS, aside, propose_folders
from skindx.start.proposal import NO_WISHES, Proposal, Wishes, known_layout, of_layout
from skindx.start.source_look import OPENED, SourcesLook, look_at_sources
from skindx.start.table_proposal import propose_table
from skindx.taxonomy import Urgency, taxonomy_names
from skindx.taxonomy.label_matches import described, load_shipped, without_urgency

if TYPE_CHECKING:
    from numpy.typing import NDArray

DECODED, SEEN = 64, 12
"""Images that are decoded, and of these the ones in which faces are looked for."""
_SURE = 0.8
"""Share of the sample from which it counts as of one modality."""
_PATTERNS = (r"^([A-Za-z]*\d+)[_-]", r"^([A-Za-z]+[_-]?\d+)[_-]")
"""How patients or lesions are named in front of a file's own number."""
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
    mean_bytes: float = 0.0
    """The mean size of a file of the sample."""
    proposal: Proposal | None = None
    """What a recipe may say of it; None: each folder is a class."""
    look: SourcesLook | None = None

    @cached_property
    def counts(self) -> Counter[str]:
        """Class -> images; *unknown* is no class."""
        stored = Counter(file.label for file in self.files if file.status == "stored")
        labels = self.look.labels if self.look else stored
        return Counter({label: n for label, n in labels.items() if not is_no_label(label)})

    @property
    def known(self) -> KnownLayout | None:
        """The layout of the dataset that it is, if it is a known one."""
        return self.proposal.layout if self.proposal else None

    @property
    def stated_modality(self) -> str:
        """Return what all sources say that their images are; "": it is not said."""
        sources = self.proposal.raw["sources"] if self.proposal else [{}]
        kinds = {str(source.get("modality", "")) for source in sources}
        return "" if "" in kinds else kinds.pop() if len(kinds) == 1 else "mixed"

    @property
    def by_folders(self) -> bool:
        """Tell whether each folder is a class, and nothing else is known of the images."""
        return self.proposal is None or self.proposal.plain

    @property
    def images(self) -> int:
        return self.counts.total()

    @property
    def sound(self) -> list[tuple[FolderFile, Screened]]:
        pairs = zip(self.sample, self.screened, strict=True)
        return [(file, verdict) for file, verdict in pairs if verdict.reason is None]

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
        lines = list(self.proposal.lines) if self.proposal else []
        kinds = "class folders" if self.by_folders else "classes"
        about = "about " if self.look and self.look.share < 1 else ""
        lines.append(
            f"{self.path}: {about}{self.images:,} images in {len(counts)} {kinds}; {sizes}."
        )
        if self.known and self.known.images and self.images != self.known.images:
            lines.append(f"The public set has {self.known.images:,} images.")
        lines += self.look.lines() if self.look else []
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


def propose(contents: FolderContents, wishes: Wishes = NO_WISHES) -> Proposal:
    """Return what a recipe may say of a folder: tables come before folders.

    Raises UserError, with one question, where it is not sure.
    """
    known = known_layout(contents, wishes)
    if known and known.layout.recipe and (known.sure or wishes.dataset):
        return of_layout(known, wishes, contents)
    by_table = wishes.dataset != FOLDERS
    table = propose_table(contents, ImageIndex(contents), wishes) if by_table else None
    if table:
        about = (f"{contents.root} is {known.layout.title}.",) if known else ()
        return replace(table, lines=(*about, *table.lines))
    folders = propose_folders(contents, wishes)
    if known and known.layout.recipe:
        return of_layout(known, wishes, contents)
    return replace(folders, lines=(*folders.lines, *aside(contents)))


@dataclass(frozen=True)
class FoundSources:
    """What a folder holds by names, and the recipe that fits."""

    contents: FolderContents
    proposal: Proposal


def proposal_of(folder: Path, wishes: Wishes = NO_WISHES) -> FoundSources:
    """Return the recipe for a folder, which may ask. Raises UserError where it is not sure."""
    if not folder.is_dir():
        look_at_folder(FolderSource(path=folder))  # which says why
    contents = FolderContents.listed(folder.resolve())
    return FoundSources(contents, propose(contents, wishes))


def look(
    folder: Path, progress: Progress = silent, found: FoundSources | None = None
) -> ImageFolder:
    """Look at a folder of images: a known dataset, a table, or class folders; nothing is written.

    Raises UserError for a folder that no dataset can come from, as a build does, and where it is
    not sure what the folder holds.
    """
    found = found or proposal_of(folder)
    contents, proposal = found.contents, found.proposal
    seen = look_at_sources(proposal.raw, folder.name or "new", contents)
    stored = [file for file in seen.files if file.status == "stored"]
    closed = {f.label for f in seen.files if f.status == "unreadable"} - {f.label for f in stored}
    if closed:
        raise UserError(
            f"no image of the class {min(closed)!r} in {folder} can be read; allow your user to "
            "read these files (chmod)."
        )
    sample = _spread(stored, DECODED)
    progress("look", 0, len(sample))
    workers, stamps = min(4, cpu_count()), [time.monotonic()]

    def report(done: int, total: int) -> None:
        stamps.append(time.monotonic())
        progress("look", done, total)

    with unpacked([file.path for file in sample], contents.root) as paths:
        screened = screen_files(paths, ScreenSettings(), (), workers=workers, on_progress=report)
        first = 1 if len(stamps) > 2 else 0  # the first answer waits for processes to start
        screen_s = workers * (stamps[-1] - stamps[first]) / max(1, len(sample) - first)
        there = zip(paths, screened, strict=True)
        sound = [path for path, verdict in there if verdict.reason is None]
        chosen = sound[:: DECODED // SEEN]
        pixels = [decode_limited(path.read_bytes()) for path in chosen]
        sizes = [path.stat().st_size for path in paths if path.is_file()]
    modality = _modality(pixels)
    return ImageFolder(
        *(folder, tuple(seen.files), seen.merged, tuple(sample), tuple(screened), screen_s),
        modality=modality,
        faces=None if modality == "dermoscopic" else _faces(pixels),
        seen=len(pixels),
        mean_bytes=float(np.mean(sizes)) if sizes else 0.0,
        proposal=proposal,
        look=seen,
    )


@contextmanager
def unpacked(paths: Sequence[Path], root: Path) -> Iterator[list[Path]]:
    """Yield paths of plain files: members of archives are copied into a temporary folder."""
    packed = ArchiveFiles(root)
    with tempfile.TemporaryDirectory() as folder:
        plain = []
        for number, path in enumerate(paths):
            member = None if path.is_file() else packed.find(path.relative_to(root).as_posix())
            if member:
                copy = Path(folder) / f"{number}{path.suffix}"
                with suppress(*DAMAGED), member() as stream:
                    copy.write_bytes(stream.read(MAX_BYTES))
            plain.append(copy if member else path)
        yield plain


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
