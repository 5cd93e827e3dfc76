"""From the private dataset folder to the copy for others."""

import dataclasses
import hashlib
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path

from skindx.data.dataset_folder import RECIPE, TAXONOMY
from skindx.data.decode import DamagedPicture
from skindx.data.manifest import Record, read_issues, read_manifest
from skindx.data.publish.clean import CleanPicture, clean_picture
from skindx.data.publish.croissant import import_mlcroissant
from skindx.data.publish.decide import check_audited, withheld_of
from skindx.data.publish.facts import Facts, PublishSettings
from skindx.data.publish.formats import FORMATS
from skindx.data.publish.place import check_place, cleared_place
from skindx.data.publish.row import Row, in_shard_order, public_issues, rows_of
from skindx.data.publish.side_files import write_side_files
from skindx.data.recipe import BuildSettings
from skindx.errors import UserError
from skindx.files import atomic_folder
from skindx.taxonomy import load_taxonomy

_INLINE = 200
"""So few pictures are cleaned sooner than another process starts."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a dataset's pictures; `withheld` counts them by reason."""

    folder: Path
    kept: int
    published: int
    reencoded: int
    withheld: dict[str, int]


def publish(
    dataset: Path, out: Path, settings: PublishSettings, *, progress: Progress | None = None
) -> Published:
    """Write the copy of a dataset that may be given away; it replaces an earlier one in `out`.

    A picture that may not be given away stands in the manifest with the reason, and none of its
    bytes anywhere. Nothing of an earlier copy changes before the new one is whole. Raises
    UserError for a dataset nobody looked through, and when no picture at all may be published.
    """
    records = read_manifest(dataset)
    recipe = BuildSettings.load(dataset / RECIPE)
    facts = Facts.of(recipe, settings)
    import_mlcroissant()
    check_place(out, dataset)
    if not settings.unaudited:
        check_audited(dataset, records)
    withheld = withheld_of(dataset, records)
    if len(withheld) == len(records):
        reason, (_, detail) = _commonest(withheld), next(iter(withheld.values()))
        raise UserError(
            f"none of the {len(records)} pictures of {dataset} may be published (most often: "
            f"{reason}; the first: {detail.rstrip('.')}); name a licence in the recipe's source, "
            f"or decide on flagged pictures, and build again."
        )
    taxonomy = load_taxonomy(dataset / TAXONOMY)
    rows = rows_of(records, withheld)
    with cleared_place(out), atomic_folder(out) as folder:
        pictures = in_shard_order(rows)
        cleaned = _cleaned(dataset, records, pictures, recipe, progress)
        written = FORMATS[facts.format].write(folder, cleaned, taxonomy.keys, facts.shard_bytes)
        by_sha = {row.sha256: row for row in written}
        rows = [by_sha.get(row.sha256, row) for row in rows]
        write_side_files(folder, rows, public_issues(read_issues(dataset)), taxonomy, facts)
    return Published(
        out,
        kept=len(rows),
        published=len(written),
        reencoded=sum(row.reencoded for row in written),
        withheld=dict(Counter(row.withheld for row in rows if row.withheld).most_common()),
    )


def _commonest(withheld: dict[str, tuple[str, str]]) -> str:
    return Counter(reason for reason, _ in withheld.values()).most_common(1)[0][0]


def _cleaned(
    dataset: Path,
    records: Sequence[Record],
    rows: Sequence[Row],
    recipe: BuildSettings,
    progress: Progress | None,
) -> Iterator[tuple[Row, bytes]]:
    """Yield rows with the bytes that are given away, in the order of `rows`."""
    path_of = {record.sha256: record.path for record in records}
    clean = partial(_clean_file, dataset, max_pixels=recipe.screen.max_pixels)
    files = [(path_of[row.sha256], row.sha256) for row in rows]
    for done, (row, picture) in enumerate(zip(rows, _in_order(clean, files), strict=True), 1):
        if progress:
            progress(done, len(rows))
        yield (
            dataclasses.replace(
                row,
                file_name=f"{row.sha256}{picture.suffix}",
                published_sha256=hashlib.sha256(picture.data).hexdigest(),
                reencoded=picture.reencoded,
                width=picture.width,
                height=picture.height,
            ),
            picture.data,
        )


def _clean_file(dataset: Path, file: tuple[str, str], *, max_pixels: int) -> CleanPicture:
    path, sha256 = file
    try:
        data = (dataset / path).read_bytes()
    except OSError as error:
        raise UserError(
            f"{dataset / path} cannot be read ({error.strerror}); build the dataset again."
        ) from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise UserError(
            f"{dataset / path} no longer holds the picture that the manifest names; delete it and "
            f"build the dataset again."
        )
    try:
        return clean_picture(data, max_pixels=max_pixels)
    except DamagedPicture as error:
        raise UserError(
            f"{dataset / path} does not decode ({error}); build the dataset again."
        ) from None


def _in_order(
    clean: Callable[[tuple[str, str]], CleanPicture], files: Sequence[tuple[str, str]]
) -> Iterator[CleanPicture]:
    """Clean in processes, a few pictures ahead of the writer and no more."""
    if len(files) <= _INLINE:
        yield from map(clean, files)
        return
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    waiting: deque[Future[CleanPicture]] = deque()
    with ProcessPoolExecutor(workers, get_context("spawn"), _leave_with_parent) as pool:
        try:
            for file in files:
                waiting.append(pool.submit(clean, file))
                if len(waiting) >= 8 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise UserError(
                "a process that strips pictures died, most likely for want of memory; publish "
                "again with more of it, or build with a lower screen.max_pixels."
            ) from None


def _leave_with_parent() -> None:
    """End this worker when its parent is killed: it would wait for work for ever."""
    parent = parent_process()
    assert parent

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
