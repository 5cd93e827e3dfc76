"""Cost of large datasets: the join of two chunks, a row of the driver, the search for copies."""

import hashlib
import json
import resource
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.machine import spawn_context
from skindx.core.measurement import interleave
from skindx.core.progress import silent
from skindx.core.settings_base import Settings
from skindx.data.build.build_dataset import make_records
from skindx.data.build.build_run import BuildRun
from skindx.data.build.build_stages import clean, drop_small_classes, label_rows
from skindx.data.copies.hash_links import turned_pairs_between
from skindx.data.ledger import LedgerRow
from skindx.data.manifest import write_issues, write_manifest
from skindx.data.recipe import BuildSettings
from skindx.data.screening.screen import Screened
from skindx.data.splits.freeze import place_groups
from skindx.data.splits.groups import GroupKeys
from skindx.workers.task_runner import LocalRunner
from skindx_bench.data import copy_search
from skindx_bench.harness.result import Figure, Result, median

# N = codes, K = kinds of hash, O = orientations

CLASSES = 100

SMALLEST = ("chunk=200", "rows=3000", "copies=24")


class Config(Settings):
    """Codes of a chunk and the radius of the join; rows that the driver sorts; images with copies.

    Of nought nothing is measured.
    """

    chunk: int = Field(1 << 20, ge=0)
    radius: int = Field(6, ge=0, le=32)
    rounds: int = Field(3, ge=3)
    rows: int = Field(200_000, ge=0)
    copies: int = Field(0, ge=0)
    """Images among which copies are searched."""
    datasets: tuple[Path, ...] = ()
    """Folders whose images are searched first; painted ones make up the number."""
    tiles: int = Field(1, ge=1)
    """Cut large images of the folders into so many a side: parts that share no pixel."""
    workers: int = Field(1, ge=1)
    """Processes of the search for copies."""
    seed: int = 0


def run(settings: Config) -> Result:
    """Measure each part that the settings ask for.

    The rows go through labels, duplicates, groups and splits into a manifest, in a process of
    their own, whose memory is compared with what it had after importing everything.
    """
    figures: dict[str, Figure] = {}
    notes: list[str] = []
    # The processes come first: each starts with the largest resident size of its parent.
    if settings.rows:
        rows_s, grown_bytes = _apart(_drive_rows, settings)
    if settings.chunk:
        _, pair_bytes = _apart(_join_pair, settings)
    if settings.copies:
        quarter, whole = copy_search.measure(
            copy_search.Images(settings.copies, settings.datasets, settings.tiles, settings.seed),
            settings.workers,
        )
    if settings.chunk:
        firsts, seconds = (uniform_codes(settings.chunk, settings.seed + n) for n in (0, 1))
        pair = partial(turned_pairs_between, firsts, seconds, settings.radius)
        timed = interleave({"chunk_pair_s": pair}, settings.rounds)
        figures |= {key: median(samples, "s") for key, samples in timed.items()}
        figures["chunk_pair_bytes"] = Figure(pair_bytes, "B", 1, (pair_bytes, pair_bytes))
        notes.append(
            f"chunk_pair: {settings.chunk:,} codes against as many, uniform, 2 kinds in 8 "
            f"orientations, within {settings.radius} bits, one thread, compiled before; growth of "
            f"the largest resident size, the codes included."
        )
    if settings.rows:
        per_row = {
            "driver_us_per_row": (rows_s * 1e6, "µs"),
            "driver_bytes_per_row": (grown_bytes, "B"),
        }
        for key, (total, unit) in per_row.items():
            value = total / settings.rows
            figures[key] = Figure(value, unit, 1, (value, value))
        notes.append(
            f"driver: {settings.rows:,} rows of {CLASSES} classes from label to manifest, every "
            f"tenth a near duplicate; CPU time, and growth of the largest resident size, the "
            f"rows' own included."
        )
    if settings.copies:
        figures |= copy_search.figures_of(quarter, whole)
        notes.append(
            f"copies: {whole.images:,} different files, {_origin(settings)}; a search of a quarter "
            f"of them and one of all, which goes on with it; wall seconds by stage, "
            f"{settings.workers} worker(s), single run. copies_hours_100k is extrapolated from "
            f"the two."
        )
    return Result("scale", figures, notes=tuple(notes))


def _origin(settings: Config) -> str:
    painted = f"painted ones of which every {copy_search.COPIED}th is a copy"
    if not settings.datasets:
        return painted
    names = " and ".join(folder.name for folder in settings.datasets)
    cut = ""
    if settings.tiles > 1:
        cut = (
            f" (images of {copy_search.TILED} pixels and more a side cut into "
            f"{settings.tiles} x {settings.tiles})"
        )
    return f"those of {names}{cut} first, then {painted}"


def uniform_codes(n: int, seed: int) -> NDArray[np.uint64]:
    """Return codes_NKO of two kinds in eight orientations."""
    return np.random.default_rng(seed).integers(0, 2**64, (n, 2, 8), dtype=np.uint64)


def screened_rows(n: int, seed: int) -> list[tuple[LedgerRow, Screened]]:
    """Return rows as a crawl and the screening would give them; every tenth is near the first."""
    codes_NKO = uniform_codes(n, seed)
    copies = np.arange(9, n, 10)
    codes_NKO[copies] = codes_NKO[copies - 9] ^ np.uint64(1)
    rows = []
    for i in range(n):
        sha256 = hashlib.sha256(f"{seed}/{i}".encode()).hexdigest()
        row = LedgerRow(
            url=f"https://pictures.example.org/atlas/{i // 100}/{i:09d}.jpg",
            label=f"class {i // 10 % CLASSES:03d}",
            status="stored",
            sha256=sha256,
            path=f"store/{sha256[:2]}/{sha256}.jpg",
            size_bytes=50_000 + i % 1000,
            retrieved="2026-01-01T00:00:00+00:00",
            source="https://pictures.example.org/",
            page_url=f"https://pictures.example.org/atlas/{i // 100}/",
            licence="CC BY 4.0",
            creator="A. Painter",
        )
        code = f"{int(codes_NKO[i, 0, 0]):016x}"
        rows.append((row, Screened(None, "", 500, 375, codes_NKO[i], code)))
    return rows


def drive(settings: Config, out: Path) -> float:
    """Take rows from label to manifest as a build does; return the CPU seconds that it took."""
    sound = screened_rows(settings.rows, settings.seed)
    recipe = BuildSettings.parse(
        {
            "name": "scale",
            "sources": [{"kind": "folder", "path": str(out)}],
            "dedup": {"copies": "off"},
            "urgency": {row.label: "routine" for row, _ in sound},
        },
        "bench scale",
    )
    run_of = BuildRun(
        recipe, out, silent, LocalRunner(1), None, GroupKeys(recipe.groups), None, {}, {}
    )
    start = time.process_time()
    taxonomy, pictures = label_rows(run_of, sound)
    del sound
    grouped = clean(run_of, pictures)
    cleaned, groups = grouped.cleaned, grouped.groups
    kept, _ = drop_small_classes(run_of, cleaned.kept, grouped, pictures)
    by_sha = {same[0].row.sha256: same for same in pictures}
    placed = place_groups(recipe.split, recipe.seed, kept, groups, {})
    records = make_records(run_of, kept, groups, by_sha, taxonomy, placed=placed)
    write_issues(out, run_of.issues)
    write_manifest(out, records)
    return time.process_time() - start


def _drive_rows(settings: Config) -> float:
    with TemporaryDirectory() as folder:
        return drive(settings, Path(folder))


def _join_pair(settings: Config) -> float:
    firsts, seconds = (uniform_codes(settings.chunk, settings.seed + n) for n in (0, 1))
    start = time.process_time()
    turned_pairs_between(firsts, seconds, settings.radius)
    return time.process_time() - start


def _apart(work: Callable[[Config], float], settings: Config) -> tuple[float, float]:
    """Return (seconds, bytes that the resident size grew by) of the work in a fresh process."""
    context = spawn_context()
    ours, theirs = context.Pipe()
    process = context.Process(target=_measure, args=(work, settings, theirs))
    process.start()
    theirs.close()
    seconds, grown = json.loads(ours.recv_bytes())
    process.join()
    return seconds, grown


def _measure(work: Callable[[Config], float], settings: Config, pipe: Connection) -> None:
    work(settings.model_copy(update={"rows": 1000, "chunk": 1000}))  # imports and compiles
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = work(settings)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pipe.send_bytes(json.dumps([seconds, (after - before) * 1024.0]).encode())
