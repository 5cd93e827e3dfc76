"""Tiles of the gallery: an image with its caption, or a pair of copies with its drawing.

A drawing shows two images side by side, and the second one laid on the first, with the points that
they share.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import UserError
from skindx.core.machine import cpu_count
from skindx.core.progress import Progress
from skindx.core.settings_base import read_yaml
from skindx.data.boxes.box_join import read_counts
from skindx.data.copies.copy_records import (
    COPIES,
    CopyRecord,
    answered_same,
    read_answers,
    read_copies,
    verdict,
)
from skindx.data.copies.describe import LONG_SIDE, describe
from skindx.data.copies.geometry import models_of
from skindx.data.decisions import (
    Decision,
    Flag,
    Reason,
    ReviewAnswer,
    read_decisions,
    read_flags,
    read_skin_answers,
    undecided,
)
from skindx.data.layout import RECIPE, SUMMARY, stored_files
from skindx.data.manifest import Issue, Record, read_issues, read_manifest
from skindx.data.summary import STAGES
from skindx.imaging.decode import decode, import_decoders
from skindx.imaging.hashes import grey
from skindx.imaging.image_formats import DamagedImage
from skindx.imaging.sandboxed_images import small_jpeg
from skindx.workers.sandbox import Work, for_each, run_sandboxed, sandboxed
from skindx.workers.worker_process import SandboxLimits

# I = points that agree


@dataclass(frozen=True, slots=True)
class Tile:
    """One image in one view."""

    sha256: str
    """"" when nothing was stored."""
    labels: tuple[str, ...]
    """Several where sources contradict each other."""
    facets: tuple[str, ...]
    """The split of a kept image, the reason of a dropped one, the flags of one to review."""
    urls: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    """Further facts, name and value."""
    beside: "Tile | None" = None
    """The image that stays in the place of a dropped one; the other one of a pair of copies."""
    drawing: str = ""
    """Files in which the gallery draws both, the second laid on the first."""


_GAP = 8
_DOT = (20, 184, 166)


def draw_pair(
    first_HW3: NDArray[np.uint8],
    second_HW3: NDArray[np.uint8],
    transform: tuple[float, ...],
    side: int,
) -> NDArray[np.uint8]:
    """Return pixels_HW3 of three panels: the first, the second, the second laid on the first.

    `transform` is that of a pair: it maps the first to the second, in described pixels. `side` is
    the longer side of each image in the drawing, in pixels. Dots mark the points that agree.
    """
    import cv2

    first_HW3, second_HW3 = np.ascontiguousarray(first_HW3), np.ascontiguousarray(second_HW3)
    transform_23 = np.array(transform, np.float64).reshape(2, 3)
    left_HW3, right_HW3 = _fitted(first_HW3, side), _fitted(second_HW3, side)
    # From a pixel of the drawing to described pixels of the first, to those of the second image,
    # and to its stored pixels.
    shrink = LONG_SIDE / max(left_HW3.shape[:2])
    enlarge = max(second_HW3.shape[:2]) / LONG_SIDE
    linear_22 = enlarge * transform_23[:, :2] * shrink
    warp_23 = np.column_stack([linear_22, enlarge * transform_23[:, 2]])
    height, width = left_HW3.shape[:2]
    laid_HW3 = cv2.warpAffine(
        second_HW3, warp_23, (width, height), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    )
    for x, y in (
        (_points(first_HW3, second_HW3, transform_23) / shrink).round().astype(int).tolist()
    ):
        for panel_HW3 in (left_HW3, laid_HW3):
            cv2.circle(panel_HW3, (x, y), 3, _DOT, 1, cv2.LINE_AA)
    return _beside([left_HW3, right_HW3, laid_HW3])


def _fitted(image_HW3: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    import cv2

    height, width = image_HW3.shape[:2]
    scale = side / max(height, width)
    size_wh = (max(1, round(width * scale)), max(1, round(height * scale)))
    way = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    fitted_HW3: NDArray[np.uint8] = cv2.resize(image_HW3, size_wh, interpolation=way)
    return fitted_HW3


def _points(
    first_HW3: NDArray[np.uint8], second_HW3: NDArray[np.uint8], transform_23: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the points of the first image that agree, of the model nearest to the transform."""
    first, second = describe(grey(first_HW3)), describe(grey(second_HW3))
    corners_34 = np.array([[0, 1, 0, 1], [0, 0, 1, 1], [1 / LONG_SIDE] * 4]) * LONG_SIDE

    def distance(model: Any) -> float:
        return float(np.abs((model.transform_23 - transform_23) @ corners_34).max())

    models = models_of(first, second)
    if not models:
        return np.empty((0, 2))
    nearest = min(models, key=distance)
    points_I2: NDArray[np.float64] = nearest.from_I2
    return points_I2 if distance(nearest) < LONG_SIDE / 8 else np.empty((0, 2))


def _beside(panels: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    height = max(panel_HW3.shape[0] for panel_HW3 in panels)
    width = sum(panel_HW3.shape[1] for panel_HW3 in panels) + _GAP * (len(panels) - 1)
    drawing_HW3 = np.full((height, width, 3), 255, np.uint8)
    at = 0
    for panel_HW3 in panels:
        drawing_HW3[: panel_HW3.shape[0], at : at + panel_HW3.shape[1]] = panel_HW3
        at += panel_HW3.shape[1] + _GAP
    return drawing_HW3


PAIRS = "pairs"
MOST_DRAWINGS = 500
"""A drawing takes a twentieth of a second; the pairs that a person should look at come first."""
_SIDE, _WIDTH = 240, 740
_LIMITS = SandboxLimits(timeout_s=30, memory_mb=900)


def copy_tiles(dataset: Path, records: Sequence[Record]) -> Iterator[Tile]:
    """Yield a tile for each pair of kept images: uncertain ones, then the least probable first."""
    file = dataset / COPIES
    if not file.exists():
        return
    known = {record.sha256: record for record in records}
    answers = read_answers(dataset)
    same = answered_same(answers)
    rows = [row for row in read_copies(file) if known.keys() >= set(row.pair)]
    named = {row: verdict(row, same) for row in rows}
    rows.sort(key=lambda row: (named[row] != "uncertain", row.probability, row.pair))
    for row in rows:
        first, second = known[row.sha256_a], known[row.sha256_b]
        facets = [_FACETS[named[row]]]
        if row.pair in answers:
            facets.append("answered by a person")
        if named[row] == "same" and first.split != second.split:
            facets.append("in two splits")
        if named[row] == "same" and first.label != second.label:
            facets.append("of two classes")
        splits = " and ".join(dict.fromkeys((first.split, second.split)))
        facts = (*_facts(row, answers.get(row.pair)), ("split", splits))
        beside = Tile(second.sha256, (second.label,), (), (second.source_url,), ())
        yield Tile(
            first.sha256,
            (first.label,),
            tuple(facets),
            (first.source_url,),
            facts,
            beside,
            f"{PAIRS}/{'-'.join(row.pair)}.jpg",
        )


_FACETS = {"same": "copies", "uncertain": "uncertain", "different": "no copies"}


def _facts(row: CopyRecord, answer: ReviewAnswer | None) -> Iterator[tuple[str, str]]:
    yield "probability", f"{row.probability:.3f}"
    yield "points that agree", str(row.inliers)
    yield "correlation", f"{row.ncc:.2f}"
    yield "overlap", f"{100 * row.covered:.0f} % of the smaller image"
    if row.mirrored:
        yield "mirrored", "yes"
    if answer:
        by = f" by {answer.by}" if answer.by else ""
        yield "answer", f"{answer.verdict}{by}"


def write_drawings(
    dataset: Path, folder: Path, tiles: Sequence[Tile], progress: Progress
) -> frozenset[str]:
    """Draw the first MOST_DRAWINGS pairs below `folder`; return the drawings that there are."""
    wanted = [tile.drawing for tile in tiles if tile.drawing][:MOST_DRAWINGS]
    if not wanted:
        return frozenset()
    rows = {f"{PAIRS}/{'-'.join(row.pair)}.jpg": row for row in read_copies(dataset / COPIES)}
    files = {file.stem: str(file.absolute()) for file in stored_files(dataset)}
    pairs = {
        name: [*(files[sha256] for sha256 in row.pair), list(row.transform)]
        for name in wanted
        if (row := rows.get(name)) and files.keys() >= set(row.pair)
    }
    (folder / PAIRS).mkdir(exist_ok=True)
    job = {"folder": str(folder.absolute()), "pairs": pairs}
    names = [Path(name) for name in pairs]
    drawn = set()
    answers = run_sandboxed(drawing_work, job, names, _LIMITS, cpu_count())
    for done, (position, written) in enumerate(answers, 1):
        if written is True:
            drawn.add(names[position].as_posix())
        progress("draw", done, len(names))
    return frozenset(drawn)


@sandboxed(import_decoders)
def drawing_work(job: dict[str, Any]) -> Work:
    """Return what draws each of the job's `pairs` below its `folder`."""
    folder, pairs = Path(job["folder"]), job["pairs"]
    return for_each(lambda name: _draw(folder / name, pairs[name.as_posix()]))


def _draw(file: Path, pair: Sequence[Any]) -> bool:
    first, second, transform = pair
    try:
        images = [decode(Path(path).read_bytes()) for path in (first, second)]
    except (OSError, DamagedImage, MemoryError):
        return False
    drawn_HW3 = draw_pair(images[0], images[1], tuple(transform), _SIDE)
    with atomic_file(file) as temporary:
        temporary.write_bytes(small_jpeg(drawn_HW3, _WIDTH))
    return True


View = Literal["kept", "dropped", "review", "copies"]
VIEWS: tuple[View, ...] = get_args(View)


@dataclass(frozen=True, slots=True)
class Tiles:
    """All tiles of a dataset by view, and the stored file of each SHA-256."""

    name: str
    by_view: Mapping[View, Sequence[Tile]]
    files: Mapping[str, str]
    funnel: Sequence[Mapping[str, Any]] = ()
    """As the build's summary has it: by class, images named, fetched, sound, distinct, kept."""
    boxes: Sequence[str] = ()
    """What became of the recipe's box file, in lines."""


def read_tiles(dataset: Path) -> Tiles:
    """Read a dataset folder's tables. Raises UserError for what is no dataset."""
    records, issues = read_manifest(dataset), read_issues(dataset)
    flags: dict[str, list[Flag]] = defaultdict(list)
    for flag in read_flags(dataset):
        flags[flag.sha256].append(flag)
    decisions, waiting = read_decisions(dataset), undecided(dataset, get_args(Reason))
    skin = read_skin_answers(dataset)
    kept = {
        r.sha256: _kept(r, flags.get(r.sha256, []), decisions.get(r.sha256), skin.get(r.sha256))
        for r in records
    }
    dropped = list(_dropped(issues, kept))
    known = {tile.sha256: tile for tile in dropped} | kept
    review = [_waiting(known.get(sha256), sha256, raised) for sha256, raised in waiting.items()]
    files = {file.stem: file.relative_to(dataset).as_posix() for file in stored_files(dataset)}
    shown = {tile.sha256 for tile in (*kept.values(), *dropped, *review)}
    return Tiles(
        _name(dataset),
        {
            "kept": list(kept.values()),
            "dropped": dropped,
            "review": review,
            "copies": list(copy_tiles(dataset, records)),
        },
        {sha256: path for sha256, path in files.items() if sha256 in shown},
        *_summary_parts(dataset),
    )


def _summary_parts(dataset: Path) -> tuple[Sequence[Mapping[str, Any]], Sequence[str]]:
    """Return funnel and boxes of a dataset's summary; one of an older version has neither."""
    summary = dataset / SUMMARY
    if not summary.exists():
        return (), ()
    try:
        raw = json.loads(summary.read_text(encoding="utf-8"))
        funnel = raw.get("funnel", [])
        stages = ("label", *STAGES, "lost")
        boxes = read_counts(raw["boxes"]).lines() if raw.get("boxes") else []
        return [{stage: row[stage] for stage in stages} for row in funnel], boxes
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{summary} cannot be read ({error}); run `skindx build` again.") from None


def _name(dataset: Path) -> str:
    recipe = dataset / RECIPE
    name = read_yaml(recipe).get("name") if recipe.exists() else None
    return str(name or dataset.resolve().name)


def _kept(
    record: Record, flags: Sequence[Flag], decision: Decision | None, skin: ReviewAnswer | None
) -> Tile:
    facts = [("size", f"{record.width} × {record.height}"), *_origin(record)]
    if record.fold is not None:
        facts.append(("fold", str(record.fold)))
    if record.group != record.sha256:
        facts.append(("group", record.group))
    if record.boxes is not None:
        facts.append(("boxes", str(len(record.boxes)) if record.boxes else "looked, none"))
    facts += [_told(flag) for flag in flags]
    if decision:
        who = f" by {decision.by}" if decision.by else ""
        facts.append(("decided", f"{decision.verdict}{who}"))
    if skin:
        facts.append(("answer", f"{skin.verdict} by {skin.by}" if skin.by else skin.verdict))
    return Tile(record.sha256, (record.label,), (record.split,), (record.source_url,), tuple(facts))


def _origin(record: Record) -> Iterator[tuple[str, str]]:
    yield "licence", record.licence or "unknown"
    if record.creator:
        yield "by", record.creator
    if record.attribution:
        yield "credit", record.attribution
    if record.confirmed_by:
        yield "confirmed by", record.confirmed_by
    if record.caption:
        yield "caption", record.caption
    if record.skin_type is not None:
        yield "skin type", str(record.skin_type)
    if record.age is not None:
        yield "age", f"{record.age:g}"
    yield from ((name, text) for name, text in (("sex", record.sex), ("site", record.site)) if text)


def _told(flag: Flag) -> tuple[str, str]:
    return f"{flag.reason} {100 * flag.score:.0f} %", flag.detail


def _dropped(issues: Sequence[Issue], kept: Mapping[str, Tile]) -> Iterator[Tile]:
    """Yield one tile an issue; the same bytes under the same reason share one, with all labels."""
    same: dict[tuple[str, str], list[Issue]] = defaultdict(list)
    for issue in issues:
        same[issue.sha256 or issue.url, issue.reason].append(issue)
    for rows in same.values():
        first = rows[0]
        details = dict.fromkeys(issue.detail for issue in rows if issue.detail)
        yield Tile(
            first.sha256,
            tuple(dict.fromkeys(issue.label for issue in rows)),
            (first.reason,),
            tuple(dict.fromkeys(issue.url for issue in rows)),
            tuple(("why", detail) for detail in details),
            kept.get(first.kept_sha256),
        )


def _waiting(tile: Tile | None, sha256: str, flags: Sequence[Flag]) -> Tile:
    reasons = tuple(dict.fromkeys(flag.reason for flag in flags))
    facts = tuple(_told(flag) for flag in flags)
    labels, urls = (tile.labels, tile.urls) if tile else (("",), ())
    return Tile(sha256, labels, reasons, urls, facts)
