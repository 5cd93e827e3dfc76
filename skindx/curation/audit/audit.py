"""Look at every image of a dataset for what a person must see before it is published."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

from skindx.core.errors import UserError
from skindx.core.machine import cpu_count
from skindx.core.progress import Progress, silent
from skindx.curation.audit.privacy import PrivacyDetector, PrivacySettings, Sighting, version
from skindx.data.decisions import PRIVATE, Flag, undecided, write_flags
from skindx.data.layout import stored_file
from skindx.data.manifest import read_manifest
from skindx.imaging.decode import decode
from skindx.workers.process import exit_with_parent_process

JOURNAL = "audit.jsonl"
"""Journal, one line an image: a killed audit goes on where it was."""

_FEW = 16
"""For so few images starting other processes takes longer than the audit."""


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """Result of an audit; an image may be flagged for several reasons."""

    images: int
    examined: int
    """Images that this run examined; earlier runs have examined the others."""
    flagged: Mapping[str, int]
    """Reason -> images."""
    waiting: int
    """Flagged images without a decision."""


def audit(
    dataset: Path,
    settings: PrivacySettings,
    *,
    workers: int = 0,
    progress: Progress = silent,
) -> AuditSummary:
    """Flag faces, text and intimate regions in DATASET/flags.parquet.

    An image that this version has seen with these thresholds is not examined again; a stopped
    audit goes on where it was. `workers` 0 takes all cores. Raises UserError without the `audit`
    extra and for an image that cannot be read.
    """
    by = version(settings)
    paths = {record.sha256: record.path for record in read_manifest(dataset)}
    seen = {sha: found for sha, found in _read_journal(dataset, by).items() if sha in paths}
    todo = [sha256 for sha256 in sorted(paths) if sha256 not in seen]
    progress("look", len(seen), len(paths))  # loading the models takes a while
    images = [stored_file(dataset, paths[sha256]) for sha256 in todo]
    found = _detect_all(images, settings, workers or cpu_count())
    with _journal(dataset).open("a", encoding="utf-8") as journal:
        for sha256, sightings in zip(todo, found, strict=True):
            seen[sha256] = sightings
            line = {
                "sha256": sha256,
                "by": by,
                "found": [asdict(sighting) for sighting in sightings],
            }
            # One write a line: a kill tears the last line at most.
            journal.write(json.dumps(line) + "\n")
            journal.flush()
            progress("look", len(seen), len(paths))
    flags = [
        Flag(sha256, sighting.reason, sighting.score, sighting.detail)
        for sha256, sightings in seen.items()
        for sighting in sightings
    ]
    write_flags(dataset, flags, PRIVATE)
    reasons = Counter(reason for _, reason in {(flag.sha256, flag.reason) for flag in flags})
    waiting = len(undecided(dataset).keys() & paths.keys())
    return AuditSummary(len(paths), len(todo), dict(reasons.most_common()), waiting)


def _journal(dataset: Path) -> Path:
    return dataset / JOURNAL


def _read_journal(dataset: Path, by: str) -> dict[str, list[Sighting]]:
    """Return what `by` has seen: SHA-256 -> sightings; a torn last line is cut off."""
    path = _journal(dataset)
    if not path.exists():
        return {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    seen: dict[str, list[Sighting]] = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
            if row["by"] == by:
                seen[row["sha256"]] = [Sighting(**sighting) for sighting in row["found"]]
        except (ValueError, TypeError, KeyError):
            raise UserError(
                f"{path}, line {number}, is no line of an audit; delete the file and run again."
            ) from None
    return seen


def _detect_all(
    paths: Sequence[Path], settings: PrivacySettings, workers: int
) -> Iterator[list[Sighting]]:
    """Yield each image's sightings in order, from `workers` processes of one thread each."""
    if workers == 1 or len(paths) <= _FEW:
        _start(settings)
        yield from map(_detect, paths)
        return
    pool = ProcessPoolExecutor(
        min(workers, len(paths)), get_context("spawn"), initializer=_start, initargs=(settings,)
    )
    try:
        yield from pool.map(_detect, paths, chunksize=4)
    except BrokenProcessPool:
        raise UserError(
            "an audit process died, most likely for want of memory; "
            "run it again with `--workers 1`."
        ) from None
    finally:
        # Also after Ctrl-C: images that wait are not examined first.
        pool.shutdown(cancel_futures=True)


_detector: PrivacyDetector | None = None
"""One a process: the models are loaded once."""


def _start(settings: PrivacySettings) -> None:
    global _detector  # noqa: PLW0603
    exit_with_parent_process()
    _detector = PrivacyDetector(settings)


def _detect(path: Path) -> list[Sighting]:
    assert _detector is not None
    try:
        pixels_HWC = decode(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); run `skindx build` again.") from None
    return _detector.detect(pixels_HWC)


def summary_lines(summary: AuditSummary) -> Iterable[str]:
    """Tell an audit in plain sentences."""
    yield f"{summary.images} images, {summary.examined} of them examined now."
    for reason, count in summary.flagged.items():
        yield f"  {count} flagged: {reason}"
    if summary.waiting:
        yield (
            f"{summary.waiting} images wait for a person's decision (sha256,verdict in "
            f"decisions.csv: keep, withhold or remove); until then they are not published."
        )
