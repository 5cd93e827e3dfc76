"""The gallery's view of copies: each pair side by side, laid on each other, with its evidence."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import atomic_file
from skindx.core.machine import cpu_count
from skindx.core.progress import Progress
from skindx.data.copies.drawing import draw_pair
from skindx.data.copies.records import (
    COPIES,
    CopyRecord,
    answered_same,
    read_answers,
    read_copies,
    verdict,
)
from skindx.data.gallery.tile import Tile
from skindx.data.layout import stored_files
from skindx.data.manifest import Record
from skindx.data.review import ReviewAnswer
from skindx.imaging.decode import decode, import_decoders
from skindx.imaging.formats import DamagedImage
from skindx.imaging.sandboxed_images import small_jpeg
from skindx.workers.sandbox import Limits, Work, for_each, run_sandboxed, sandboxed

PAIRS = "pairs"
MOST_DRAWINGS = 500
"""A drawing takes a twentieth of a second; the pairs that a person should look at come first."""
_SIDE, _WIDTH = 240, 740
_LIMITS = Limits(timeout_s=30, memory_mb=900)


def copy_tiles(dataset: Path, records: Sequence[Record]) -> Iterator[Tile]:
    """Yield a tile for each pair of kept images: uncertain ones, then the least probable first."""
    file = dataset / COPIES
    if not file.exists():
        return
    known = {record.sha256: record for record in records}
    answers = read_answers(dataset)
    said = answered_same(answers)
    rows = [row for row in read_copies(file) if known.keys() >= set(row.pair)]
    named = {row: verdict(row, said) for row in rows}
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
    answers = run_sandboxed(drawing, job, names, _LIMITS, cpu_count())
    for done, (position, written) in enumerate(answers, 1):
        if written is True:
            drawn.add(names[position].as_posix())
        progress("draw", done, len(names))
    return frozenset(drawn)


@sandboxed(import_decoders)
def drawing(job: dict[str, Any]) -> Work:
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
