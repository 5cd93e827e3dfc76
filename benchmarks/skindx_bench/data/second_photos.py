"""Recall of second photos on the whole path: candidate, verification, link; and false links.

Photos of one lesion are linked when the search for copies accepts them. Each pair of one lesion is
followed to the stage that loses it; all pairs of different lesions are those that a link may join
falsely. The candidates by votes alone stand for the search before the most alike were added.
"""

import csv
import hashlib
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.data import layout
from skindx.data.copies import copy_candidates
from skindx.data.copies.copy_candidates import recurring_keys
from skindx.data.copies.describe import DescriptionLibrary, sha256_of
from skindx.data.copies.find import find_copies
from skindx.data.copies.geometry import models_of
from skindx.data.copies.hash_links import connected, near_links
from skindx.data.copies.verified import VALUES, read_verified, verified_files
from skindx.data.copies.verify import ACCEPT, verify
from skindx.data.splits.groups import GroupSettings
from skindx.data.synthetic.painter import CLASSES, encode_jpeg, paint
from skindx.imaging.hashes import HashKind
from skindx.metrics import proportion_interval, share_interval
from skindx.workers.task_runner import LocalRunner
from skindx_bench.data.learn_copies import second_photo
from skindx_bench.data.screen import hash_images
from skindx_bench.harness.result import Figure, Result

TABLE, IMAGES = "index.csv", "images"
HALVES = ("tuning", "unseen")


@dataclass(frozen=True)
class Photo:
    """One photo; `share` is that of the lesion in the picture, NaN where nobody has drawn it."""

    name: str
    lesion: str
    label: str
    share: float
    data: bytes


def painted_photos(lesions: int, others: int, seed: int) -> list[Photo]:
    """Paint lesions with a second photo each, and others of one class with one photo."""
    rng = np.random.default_rng(seed)
    photos = []
    for number in range(lesions + others):
        label = CLASSES[number % len(CLASSES)] if number < lesions else CLASSES[0]
        pixels_HW3 = paint(label, number, seed).pixels
        shown = [pixels_HW3, second_photo(pixels_HW3, rng)][: 2 if number < lesions else 1]
        photos += [
            Photo(f"{number}-{at}", str(number), label, float("nan"), encode_jpeg(one, 85))
            for at, one in enumerate(shown)
        ]
    return photos


def photos_of(folder: Path, half: str, lesions: int, others: int, same: Path | None) -> list[Photo]:
    """Return all photos of so many lesions that have several, and of others that have one.

    `folder` has index.csv (image, lesion_id, dx, perhaps mask_area_share) and images/. The hash of
    a lesion's id decides its half and its place in the order; others are of the commonest class.
    `same` names images of one lesion under different ids (image, thing). Raises UserError.
    """
    rows = _rows(folder / TABLE, ("image", "lesion_id", "dx"))
    by_lesion: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        by_lesion[row["lesion_id"]].append(row)
    of_half = sorted(
        (lesion for lesion in by_lesion if HALVES[int(_digest(lesion)[:8], 16) % 2] == half),
        key=_digest,
    )
    several = [lesion for lesion in of_half if len(by_lesion[lesion]) > 1][:lesions]
    labels = [row["dx"] for row in rows]
    common = max(sorted(set(labels)), key=labels.count)
    single = [lesion for lesion in of_half if len(by_lesion[lesion]) == 1]
    single = [lesion for lesion in single if by_lesion[lesion][0]["dx"] == common][:others]
    joined = _joined(rows, same)
    chosen = [row for lesion in (*several, *single) for row in by_lesion[lesion]]
    return [
        Photo(
            row["image"],
            joined.get(row["lesion_id"], row["lesion_id"]),
            row["dx"],
            float(row.get("mask_area_share") or "nan"),
            _read(folder / IMAGES / f"{row['image']}.jpg"),
        )
        for row in chosen
    ]


def _joined(rows: Iterable[dict[str, str]], same: Path | None) -> dict[str, str]:
    """Return the id that stands for each id of a lesion that has several."""
    if same is None:
        return {}
    lesion_of = {row["image"]: row["lesion_id"] for row in rows}
    things: dict[str, str] = {}
    stands: dict[str, str] = {}
    for row in _rows(same, ("image", "thing")):
        lesion = lesion_of.get(row["image"])
        if lesion is not None:
            stands[lesion] = things.setdefault(row["thing"], lesion)
    return stands


def _digest(lesion: str) -> str:
    return hashlib.sha256(lesion.encode()).hexdigest()


def _rows(file: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened)
            for column in columns:
                if column not in (reader.fieldnames or ()):
                    raise UserError(f"{file} has no column {column!r}; give it one.")
            return list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} cannot be read as a table ({error}); name another one.") from None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error}); the table names it.") from None


# N = photos, P = pairs of photos of one lesion

HEADINGS = ("value", "95 % interval")
SMALLEST = ("lesions=3", "others=3")
HASHES: tuple[HashKind, ...] = ("perceptual", "difference")
ZOOMS = (1.25, 1.75)
"""Edges of the groups by zoom: how much larger one photo shows the lesion than the other."""


class Config(Settings):
    """The lesions, and how many of them."""

    dataset: Path | None = None
    """A folder with index.csv (image, lesion_id, dx) and images/; none: painted lesions."""
    half: Literal["tuning", "unseen"] = "unseen"
    """Lesions that settings may be chosen on, or the others."""
    lesions: int = Field(500, ge=1)
    """Lesions with two photos and more."""
    others: int = Field(1100, ge=0)
    """Lesions of the commonest class with one photo: more that look alike."""
    same: Path | None = None
    """A table (image, thing) of images that show one lesion under different ids."""
    workers: int = Field(1, ge=1)
    seed: int = 0
    """Of painted lesions."""


@dataclass(frozen=True)
class Followed:
    """What became of the pairs of one lesion, and of the others."""

    pairs_P2: NDArray[np.int64]
    before_P: NDArray[np.bool_]
    """Linked by the search without what was added for second photos: by a candidate with votes or
    near hashes, and by the acceptance alone."""
    voted_P: NDArray[np.bool_]
    """Candidates by votes or near hashes."""
    candidate_P: NDArray[np.bool_]
    acceptable_P: NDArray[np.bool_]
    """The verification accepts them, candidates or not."""
    aligned_P: NDArray[np.bool_]
    """Enough points agree for an alignment, whatever the verification says of it."""
    joined_P: NDArray[np.bool_]
    """Links, also those of other photos, put both into one family."""
    joined_before_P: NDArray[np.bool_]
    false: tuple[tuple[int, int], ...]
    verified: int
    minutes: float


def run(settings: Config) -> Result:
    """Search, and follow each pair of one lesion. Raises UserError for a table without images."""
    photos = (
        painted_photos(settings.lesions, settings.others, settings.seed)
        if settings.dataset is None
        else photos_of(
            settings.dataset, settings.half, settings.lesions, settings.others, settings.same
        )
    )
    photos = list({photo.data: photo for photo in photos}.values())
    with TemporaryDirectory(prefix="skindx-second-") as folder:
        followed = _follow(Path(folder), photos, settings.workers)
    return Result(
        "second-photos",
        _figures(photos, followed),
        notes=tuple(_notes(settings, photos, followed)),
        headings=HEADINGS,
    )


def _follow(dataset: Path, photos: Sequence[Photo], workers: int) -> Followed:
    paths = [layout.store_bytes(dataset, photo.data, ".jpg")[1] for photo in photos]
    codes_NKO = np.concatenate([hash_images([photo.data], HASHES) for photo in photos])
    hashed_P2 = near_links(codes_NKO, GroupSettings().radius)[:, :2]
    start = time.perf_counter()
    copies = find_copies(dataset, paths, runner=LocalRunner(workers), hash_candidates=hashed_P2)
    minutes = (time.perf_counter() - start) / 60
    by_lesion: dict[str, list[int]] = defaultdict(list)
    for at, photo in enumerate(photos):
        by_lesion[photo.lesion].append(at)
    pairs = sorted(pair for one in by_lesion.values() for pair in itertools.combinations(one, 2))
    pairs_P2 = np.array(pairs, np.int64).reshape(-1, 2)
    names = [sha256_of(path) for path in paths]
    verified = _verified(dataset, names, pairs_P2)
    library = DescriptionLibrary(dataset)
    voted = _voted(library, names) | {_named(names[i], names[j]) for i, j in hashed_P2.tolist()}
    links = [(copy.first, copy.second) for copy in copies if copy.same]
    links_before = [
        (copy.first, copy.second)
        for copy in copies
        # What is accepted for its turn has just the probability that accepts.
        if copy.probability > ACCEPT and _named(names[copy.first], names[copy.second]) in voted
    ]
    probabilities = []
    for i, j in pairs:
        probability = verified.get(_named(names[i], names[j]))
        if probability is None:
            copy = verify(library[names[i]], library[names[j]])
            probability = 0.0 if copy is None else copy.probability
        probabilities.append(probability)
    probability_P = np.array(probabilities, np.float64)
    voted_P = np.array([_named(names[i], names[j]) in voted for i, j in pairs], bool)
    return Followed(
        pairs_P2,
        voted_P & (probability_P > ACCEPT),
        voted_P,
        np.array([_named(names[i], names[j]) in verified for i, j in pairs], bool),
        probability_P >= ACCEPT,
        np.array(
            [
                probability >= ACCEPT or bool(models_of(library[names[i]], library[names[j]]))
                for (i, j), probability in zip(pairs, probabilities, strict=True)
            ],
            bool,
        ),
        _lesions_joined(links, pairs_P2, len(photos)),
        _lesions_joined(links_before, pairs_P2, len(photos)),
        tuple(link for link in links if photos[link[0]].lesion != photos[link[1]].lesion),
        _count_verified(dataset),
        minutes,
    )


def _lesions_joined(
    links: Sequence[tuple[int, int]], pairs_P2: NDArray[np.int64], photos: int
) -> NDArray[np.bool_]:
    family_N = np.array(connected(photos, np.array(links, np.int64).reshape(-1, 2)))
    return np.asarray(family_N[pairs_P2[:, 0]] == family_N[pairs_P2[:, 1]], np.bool_)


def _named(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one < other else (other, one)


def _verified(
    dataset: Path, names: Sequence[str], pairs_P2: NDArray[np.int64]
) -> dict[tuple[str, str], float]:
    """Return the probability of those pairs that the search verified, the smaller name first."""
    ordered = sorted(names)
    place = {name: at for at, name in enumerate(ordered)}
    wanted_P2 = np.sort(np.array([place[name] for name in names])[pairs_P2], axis=1)
    wanted_P2 = np.unique(wanted_P2, axis=0)
    _, read_PV = read_verified(verified_files(dataset), ordered, wanted_P2, 0.0)
    at = 2 + VALUES.index("probability")
    return {(ordered[int(row[0])], ordered[int(row[1])]): float(row[at]) for row in read_PV}


def _count_verified(dataset: Path) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in verified_files(dataset))


def _voted(library: DescriptionLibrary, names: Sequence[str]) -> set[tuple[str, str]]:
    """Return the pairs that are candidates by their votes, the smaller name first."""
    ordered = sorted(names)
    recurring = recurring_keys(library, ordered, np.arange(len(ordered)))
    size = copy_candidates.CHUNK_IMAGES
    runs = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    chunks = [copy_candidates.load_chunk(library, run, recurring) for run in runs]
    found = set()
    for a, b in itertools.combinations_with_replacement(range(len(runs)), 2):
        for i, j, _ in copy_candidates.chunk_candidates(chunks[a], chunks[b], a == b).tolist():
            found.add(_named(runs[a][i], runs[b][j]))
    return found


def _figures(photos: Sequence[Photo], followed: Followed) -> dict[str, Figure]:
    lesion_P = np.array([photos[i].lesion for i in followed.pairs_P2[:, 0].tolist()])
    linked_P = followed.candidate_P & followed.acceptable_P

    def share(hits_P: NDArray[np.bool_], of_P: NDArray[np.bool_] | None = None) -> Figure:
        of_P = np.ones(len(hits_P), bool) if of_P is None else of_P
        found = share_interval(hits_P[of_P], lesion_P[of_P])
        return Figure(found.value, "", int(of_P.sum()), (found.low, found.high))

    before_P = followed.before_P
    figures = {
        "recall": share(linked_P),
        "recall_before": share(before_P),
        "recall_joined": share(followed.joined_P),
        "recall_joined_before": share(followed.joined_before_P),
        "candidates": share(followed.candidate_P),
        "candidates_before": share(followed.voted_P),
        "accepted_of_all": share(followed.acceptable_P),
        "lost_no_points": share(~followed.aligned_P),
        "lost_not_accepted": share(followed.aligned_P & ~followed.acceptable_P),
        "lost_no_candidate": share(followed.acceptable_P & ~followed.candidate_P),
    }
    zoom_P = _zoom(photos, followed.pairs_P2)
    for name, low, high in (
        ("small", 0.0, ZOOMS[0]),
        ("middle", *ZOOMS),
        ("large", ZOOMS[1], np.inf),
    ):
        of_P = (zoom_P >= low) & (zoom_P < high)
        if of_P.any():
            figures[f"recall_zoom_{name}"] = share(linked_P, of_P)
            figures[f"recall_before_zoom_{name}"] = share(before_P, of_P)
            figures[f"lost_no_points_zoom_{name}"] = share(~followed.aligned_P, of_P)
    for name, kind in (("", False), ("_of_one_class", True)):
        pairs = _different(photos, one_class=kind)
        false = [
            (i, j) for i, j in followed.false if not kind or photos[i].label == photos[j].label
        ]
        bound = proportion_interval(len(false) / max(1, pairs), pairs)
        spread = (bound.low * pairs, bound.high * pairs)
        figures[f"false_links{name}"] = Figure(len(false), "", pairs, spread)
        figures[f"false_rate{name}"] = Figure.of(bound, "", pairs)
    count = len(photos)
    figures["pairs_verified"] = Figure(followed.verified, "", count, (followed.verified,) * 2)
    figures["search_minutes"] = Figure(followed.minutes, "min", 1, (followed.minutes,) * 2)
    return figures


def _zoom(photos: Sequence[Photo], pairs_P2: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how many times larger, in length, one photo of a pair shows the lesion, or NaN."""
    share_N = np.array([photo.share for photo in photos])
    ratio_P = share_N[pairs_P2[:, 0]] / share_N[pairs_P2[:, 1]]
    return np.asarray(np.sqrt(np.maximum(ratio_P, 1 / ratio_P)), np.float64)


def _different(photos: Sequence[Photo], *, one_class: bool) -> int:
    """Count the pairs of photos of different lesions."""

    def pairs(counts: Counter[str]) -> int:
        return sum(n * (n - 1) // 2 for n in counts.values())

    lesions = pairs(Counter(photo.lesion for photo in photos))
    if not one_class:
        return len(photos) * (len(photos) - 1) // 2 - lesions
    inside = pairs(Counter(f"{photo.label}/{photo.lesion}" for photo in photos))
    return pairs(Counter(photo.label for photo in photos)) - inside


def _notes(settings: Config, photos: Sequence[Photo], followed: Followed) -> list[str]:
    several = len({photos[i].lesion for i in followed.pairs_P2[:, 0].tolist()})
    where = "painted lesions" if settings.dataset is None else settings.dataset.resolve().name
    half = "" if settings.dataset is None else f", {settings.half} half"
    notes = [
        f"{where}{half}: {len(photos):,} photos of {len({photo.lesion for photo in photos}):,} "
        f"lesions, {several} of them with {len(followed.pairs_P2):,} pairs of photos; intervals "
        f"take the pairs of one lesion as dependent.",
        "before: candidates by votes and near hashes, and the acceptance without turns, as of "
        "earlier versions. accepted of all: what the verification would accept if every pair were "
        "a candidate.",
        "false_links: accepted pairs of different lesions, of all such pairs; the interval takes "
        "these pairs as independent.",
    ]
    for i, j in followed.false:
        notes.append(
            f"false link: {photos[i].name} ({photos[i].label}, {photos[i].lesion}) and "
            f"{photos[j].name} ({photos[j].label}, {photos[j].lesion})."
        )
    return notes
