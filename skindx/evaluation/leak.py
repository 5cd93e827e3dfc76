"""A certificate of leakage: which images of A are copies of images of B, and what is not known.

A and B are dataset folders or bundles; a bundle has the fingerprints of the images that it was made
from. The result is a JSON file, one HTML page, and all pairs as CSV.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from skindx.core.atomic_files import (
    FolderKind,
    atomic_folder,
    sha256_file,
    write_csv,
    write_json,
    write_text,
)
from skindx.core.errors import UserError
from skindx.core.measurement import versions
from skindx.core.progress import Progress, silent
from skindx.core.text import counted
from skindx.data.layout import MANIFEST, stored_file
from skindx.data.manifest import Record, read_manifest
from skindx.data.tables.cells import no_formula
from skindx.evaluation.evaluation_report import render
from skindx.imaging.image_formats import DamagedImage
from skindx.imaging.sandboxed_images import decode_limited
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.bundle_index import INDEX
from skindx.models.copy_recognition import PART, WHOLE, CopyRecognition
from skindx.models.fingerprints import Fingerprints, described

JSON, PAGE, PAIRS = "leak.json", "leak.html", "pairs.csv"
_CERTIFICATE = FolderKind("a certificate of leakage", JSON, (PAGE, PAIRS))
_SHOWN = 100
"""Most pairs on the page; the CSV has all."""
BOUND_FILE = Path(__file__).parent / "leak_bound.json"
"""File with what `skindx bench data leak` measured."""

STRANGERS = ("linked to another group", "strangers linked")
"""Keys of the measured figures of images that share no picture with the fingerprinted ones."""

Kind = Literal["same bytes", "same pixels", "other encoding, size or turn", "part", "same group"]
KINDS: dict[Kind, str] = {
    "same bytes": "the files are equal",
    "same pixels": "the files differ, and every pixel of the decoded images is equal",
    "other encoding, size or turn": f"at most {WHOLE} of 255 bits of the whole images differ",
    "part": f"a crop, or a second photo: laid on each other, at most {PART} of 255 bits differ",
    "same group": "not recognised as copies, but both manifests name the same lesion or patient",
}
_IMAGE_NAME = re.compile("[0-9a-f]{64}")
"""Name of a group that is only one image's digest, and means nothing in another dataset."""


@dataclass(frozen=True, slots=True)
class LeakSide:
    """One of the two compared sides, and how many of its images count."""

    name: str
    what: Literal["dataset", "bundle"]
    sha256: str
    """SHA-256 of the manifest, or the bundle's digest."""
    images: int


@dataclass(frozen=True, slots=True)
class LeakPair:
    """Two images, by SHA-256 and path in the dataset; a bundle knows no path."""

    kind: Kind
    a_sha256: str
    a_path: str
    b_sha256: str
    b_path: str
    distance: int
    """Number of differing bits of 255; -1 where they were not compared."""


@dataclass(frozen=True, slots=True)
class LeakCount:
    """Pairs of one kind, and how many images of each side are in them."""

    kind: Kind
    pairs: int
    a_images: int
    b_images: int


@dataclass(frozen=True)
class LeakCertificate:
    """Result of a comparison; an image may be in pairs of several kinds."""

    a: LeakSide
    b: LeakSide
    counts: tuple[LeakCount, ...]
    copied_a: int
    """Images of A in at least one pair of copies; a shared group alone is no copy."""
    copied_b: int
    searched: int
    """Images that were compared with the fingerprints of the other side."""
    false_links: float
    """Most links by chance among these, at 95 % confidence."""
    bound: Mapping[str, Any]
    """Measurement from which this bound is computed."""
    not_compared: tuple[str, ...]
    date: str
    versions: Mapping[str, str]
    pairs: tuple[LeakPair, ...]


@dataclass(frozen=True)
class _Input:
    """A side with its images."""

    side: LeakSide
    path: Path
    records: dict[str, Record]
    sha256s: frozenset[str]
    fingerprints: Fingerprints | None


def leak(
    first: Path, second: Path, out: Path, *, progress: Progress | None = None
) -> LeakCertificate:
    """Compare two datasets, or a bundle and a dataset, and write the certificate to `out`.

    Raises UserError for what is neither, for two bundles, which have no image to compare, for the
    same one twice, and without numba.
    """
    _CERTIFICATE.check(out)
    a, b = _read(first), _read(second)
    if a.side.what == b.side.what == "bundle":
        raise UserError(
            f"{first} and {second} are both bundles, which have no images to compare; give a "
            "dataset in place of one of them."
        )
    if a.side.sha256 == b.side.sha256:
        raise UserError(f"{first} and {second} are the same dataset; give two different datasets.")
    certificate = _certificate(a, b, progress or silent)
    with atomic_folder(out, _CERTIFICATE) as folder:
        values = asdict(certificate)
        del values["pairs"]  # complete in the CSV
        write_json(folder / JSON, values)
        write_csv(
            folder / PAIRS,
            LeakPair.__slots__,
            (
                [no_formula(getattr(pair, name)) for name in LeakPair.__slots__]
                for pair in certificate.pairs
            ),
        )
        write_text(folder / PAGE, render_page(certificate))
    return certificate


def _read(path: Path) -> _Input:
    if (path / INDEX).is_file():
        bundle = open_bundle(path)
        made_from = {sha for sha, split in (bundle.seen() or {}).items() if split != "test"}
        side = LeakSide(str(path), "bundle", bundle.digest, len(made_from))
        return _Input(side, path, {}, frozenset(made_from), bundle.fingerprints())
    if not (path / MANIFEST).is_file():
        raise UserError(
            f"{path} is neither a dataset (it has no {MANIFEST}) nor a bundle (no {INDEX}); give a "
            "folder that `skindx build` wrote, or RUN/bundle."
        )
    records = {record.sha256: record for record in read_manifest(path)}
    side = LeakSide(str(path), "dataset", sha256_file(path / MANIFEST), len(records))
    return _Input(side, path, records, frozenset(records), None)


def _certificate(a: _Input, b: _Input, progress: Progress) -> LeakCertificate:
    notes: list[str] = []
    pairs = [_pair("same bytes", a, b, (sha256, sha256), 0) for sha256 in a.sha256s & b.sha256s]
    # The larger side gets fingerprints, which are made faster than images are compared with them.
    swapped = b.side.what == "dataset" and (
        a.side.what == "bundle" or len(a.records) >= len(b.records)
    )
    known, compared = (a, b) if swapped else (b, a)
    prints, searched = known.fingerprints, 0
    if known.side.what == "dataset":
        prints = Fingerprints.from_images(_described(known, notes, "fingerprints", progress))
    elif not known.sha256s:
        notes.append(f"{known.side.name} does not say which images it was made from.")
    if prints is None:
        notes.append(
            f"{known.side.name} has no fingerprints, as an older bundle: only files with the same "
            "bytes are recognised; pack it again."
        )
    else:
        images = _described(compared, notes, "compare", progress)
        for copy in CopyRecognition(prints).recognise(images):
            names = (copy.of, copy.sha256) if swapped else (copy.sha256, copy.of)
            kind: Kind = "part" if copy.kind == "part" else "other encoding, size or turn"
            if names[0] != names[1]:
                pixels = copy.kind == "whole" and _same_pixels(a, b, names)
                pairs.append(_pair("same pixels" if pixels else kind, a, b, names, copy.distance))
        searched = len(compared.records)
    if "bundle" in (a.side.what, b.side.what):
        notes.append("Groups: a bundle does not carry the names of lesions and patients.")
    else:
        paired = {(pair.a_sha256, pair.b_sha256) for pair in pairs}
        pairs += [_pair("same group", a, b, names, -1) for names in _grouped(a, b) - paired]
    order = list(KINDS)
    pairs.sort(key=lambda pair: (order.index(pair.kind), pair.a_sha256, pair.b_sha256))
    copies = [pair for pair in pairs if pair.kind != "same group"]
    bound = json.loads(BOUND_FILE.read_text(encoding="utf-8"))
    return LeakCertificate(
        a.side,
        b.side,
        tuple(_count(kind, pairs) for kind in KINDS),
        len({pair.a_sha256 for pair in copies}),
        len({pair.b_sha256 for pair in copies}),
        searched,
        most_false(searched, len(prints or ()), bound),
        bound,
        tuple(notes),
        datetime.now(UTC).isoformat(timespec="seconds"),
        versions(),
        tuple(pairs),
    )


def most_false(images: int, fingerprints: int, bound: Mapping[str, Any]) -> float:
    """Return how many of `images` may be linked by chance with this many fingerprints, at most.

    The upper end of the measured 95 % intervals, for pairs in proportion.
    """
    figures = bound["figures"]
    measured = (figures[name]["spread"][1] for name in STRANGERS if name in figures)
    share = max(measured) * fingerprints / figures["fingerprints"]["value"]
    return float(images * min(1.0, share))


def _described(one: _Input, notes: list[str], stage: str, progress: Progress) -> Iterator[Any]:
    """Yield the descriptions of a dataset; note how many images cannot be decoded."""
    records, readable = list(one.records.values()), 0
    for item in described(one.path, records, lambda done, of: progress(stage, done, of)):
        readable += 1
        yield item
    if lost := len(records) - readable:
        notes.append(f"{counted(lost, 'image')} of {one.side.name} cannot be decoded.")


def _pair(kind: Kind, a: _Input, b: _Input, names: tuple[str, str], distance: int) -> LeakPair:
    paths = [
        side.records[name].path if name in side.records else ""
        for side, name in zip((a, b), names, strict=True)
    ]
    return LeakPair(kind, names[0], paths[0], names[1], paths[1], distance)


def _same_pixels(a: _Input, b: _Input, names: tuple[str, str]) -> bool:
    records = [side.records.get(name) for side, name in zip((a, b), names, strict=True)]
    one, other = records
    if not one or not other or (one.width, one.height) != (other.width, other.height):
        return False
    files = (stored_file(a.path, one.path), stored_file(b.path, other.path))
    try:
        first_HWC, second_HWC = (decode_limited(file.read_bytes()) for file in files)
    except (OSError, DamagedImage):
        return False
    return np.array_equal(first_HWC, second_HWC)


def _grouped(a: _Input, b: _Input) -> set[tuple[str, str]]:
    """Return the pairs of images whose groups have the same name on both sides."""
    by_group: dict[str, list[str]] = defaultdict(list)
    for sha256, record in a.records.items():
        if record.group and not _IMAGE_NAME.fullmatch(record.group):
            by_group[record.group].append(sha256)
    return {
        (one, sha256)
        for sha256, record in b.records.items()
        for one in by_group.get(record.group, ())
    }


def _count(kind: Kind, pairs: Sequence[LeakPair]) -> LeakCount:
    chosen = [pair for pair in pairs if pair.kind == kind]
    sides = ({pair.a_sha256 for pair in chosen}, {pair.b_sha256 for pair in chosen})
    return LeakCount(kind, len(chosen), *map(len, sides))


def verdict(certificate: LeakCertificate) -> str:
    """Return the conclusion in a sentence or two."""
    a, b = certificate.a, certificate.b
    chance = f"at most {certificate.false_links:.1f} images are linked by chance (95 %)"
    if not certificate.searched:
        chance = "other copies were not looked for"
    if not certificate.copied_a:
        return f"No image of {a.name} was recognised as a copy of one of {b.name}; {chance}."
    return (
        f"{counted(certificate.copied_a, 'image')} of {a.images:,} of {a.name} are copies of "
        f"{counted(certificate.copied_b, 'image')} of {b.images:,} of {b.name}; {chance}."
    )


def render_page(certificate: LeakCertificate) -> str:
    """Return the certificate as HTML that is well-formed XML too; every value is escaped."""
    return render(
        "leak.html.jinja",
        c=certificate,
        kinds=KINDS,
        verdict=verdict(certificate),
        shown=certificate.pairs[:_SHOWN],
        measured=certificate.bound["figures"],
    )
