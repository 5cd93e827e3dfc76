"""The boxes of a file join the images of a dataset; what does not fit is counted, with reasons."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skindx.data.box import BoxedImage
from skindx.data.boxes.box_file import BoxEntry, BoxFile, Finding, Findings
from skindx.data.boxes.frames import orientation_in, place
from skindx.data.boxes.matching import match_entries

MISSIZED = "the dataset has the image in another size"
ODD = "it has boxes that are empty or reach outside the image, or shapes that are not boxes"
UNREAD = "none of its rows can be used, which does not say that there is no lesion"
PARTLY_READ = "some of its rows cannot be used, so its boxes may not be all: look at them"
LEFT_OUT = "the image was left out of the dataset"
TURNED = "drawn on the stored pixels of a photo that EXIF turns, so turned with it"
UNCERTAIN = (
    "the photo is turned or mirrored by EXIF, and nothing says whether the boxes are on the "
    "stored or on the upright pixels; they are taken as upright: look at them"
)


@dataclass(frozen=True, slots=True)
class Stored:
    """An image of the dataset: upright (width, height), and its file."""

    size: tuple[int, int]
    file: Path


@dataclass(frozen=True, slots=True)
class JoinedEntry:
    """An entry of a box file, its image's SHA-256, and its boxes in that image."""

    entry: BoxEntry
    sha256: str
    image: BoxedImage


@dataclass(frozen=True, slots=True)
class BoxCounts:
    """What became of a box file, as summary.json has it."""

    file: str
    named: int
    """Images that the file names."""
    joined: int
    """Images of the dataset that have boxes of it, or are known from it to have none."""
    boxes: int
    findings: tuple[Finding, ...] = ()

    def lines(self) -> list[str]:
        """Return the counts as lines for a person."""
        return [
            f"box file {self.file}: {self.joined} of {self.named} images that it names are in the "
            f"dataset, with {self.boxes} boxes.",
            *(f"box file {self.file}: {finding.line()}." for finding in self.findings),
        ]


def read_counts(raw: Mapping[str, Any]) -> BoxCounts:
    """Return the counts that summary.json has. Raises KeyError and TypeError for other values."""
    findings = [
        Finding(
            each["kind"], str(each["reason"]), int(each["count"]), tuple(map(str, each["first"]))
        )
        for each in raw["findings"]
    ]
    named, joined, boxes = (int(raw[name]) for name in ("named", "joined", "boxes"))
    return BoxCounts(str(raw["file"]), named, joined, boxes, tuple(findings))


@dataclass(slots=True)
class Joined:
    """What fits, and what does not."""

    file: BoxFile
    entries: list[JoinedEntry] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)

    def all_findings(self) -> tuple[Finding, ...]:
        """Return what was left out of the file and what fits no image."""
        return (*self.file.all_findings(), *self.findings.list())

    def problems(self) -> tuple[Finding, ...]:
        """Return all that `--strict` refuses: not what nobody has annotated yet."""
        return (*self.file.findings.list(), *self.findings.list())

    def counts(self) -> BoxCounts:
        """Return the figures for the summary."""
        latest = {joined.sha256: joined.image for joined in self.entries}
        named = {entry.paths for entry in self.file.entries}
        return BoxCounts(
            self.file.path.name,
            len(named) + len(self.file.waiting),
            len(latest),
            sum(len(image.boxes) for image in latest.values()),
            self.all_findings(),
        )


def join(
    file: BoxFile,
    images: Mapping[str, Stored],
    names: Iterable[tuple[str, str]],
    *,
    cut: bool = False,
) -> Joined:
    """Join the entries of a box file to `images`, by SHA-256.

    `names` gives (SHA-256, path or URL) of every image that was found, also of those that are not
    in the dataset: a box must not land on another one that bears the same name. With `cut`, an
    image keeps those of its boxes that fit; otherwise it is refused for one that does not.
    """
    joined = Joined(file)
    for placed in place(_matched(joined, images, names)):
        name, refused = placed.entry.name, placed.image.refused
        if placed.frame == "missized":
            joined.findings.add("refused", MISSIZED, name)
            continue
        if refused and not cut:
            joined.findings.add("refused", ODD, name)
            continue
        if refused:
            joined.findings.add("refused" if not placed.image.boxes else "cut", ODD, name)
        if refused and not placed.image.boxes:
            continue  # a box that is nowhere in the image does not say that there is no lesion
        if placed.image.unread:
            joined.findings.add("cut", PARTLY_READ, name)
        if placed.turned:
            joined.findings.add("turned", TURNED, name)
        elif placed.frame == "unknown":
            joined.findings.add("uncertain", UNCERTAIN, name)
        joined.entries.append(JoinedEntry(placed.entry, placed.sha256, placed.image))
    return joined


def _matched(
    joined: Joined, images: Mapping[str, Stored], names: Iterable[tuple[str, str]]
) -> list[tuple[BoxEntry, str, tuple[int, int], int]]:
    """Return the entries that have an image, with its SHA-256, upright size and orientation."""
    entries = joined.file.entries
    matches = match_entries(entries, names)
    matched = []
    for position, entry in enumerate(entries):
        sha256 = matches.image.get(position, "")
        if not sha256:
            joined.findings.add("refused", matches.refused[position], entry.name)
        elif sha256 not in images:
            joined.findings.add("refused", LEFT_OUT, entry.name)
        elif entry.image.unread and not entry.image.boxes:
            joined.findings.add("refused", UNREAD, entry.name)
        else:
            stored = images[sha256]
            matched.append((entry, sha256, stored.size, orientation_in(stored.file)))
    return matched
