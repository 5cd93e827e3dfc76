"""Crawls in parts, by host: a worker each, with its own ledger, merged into the dataset's.

Each part reads all sources and asks only the hosts that are its own; what lies on another's host
is left to the one crawl that follows on the driver. That crawl finds all answers in the ledger,
so it asks again for pages alone: parts make it shorter and never change what it finds.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from skindx.core.errors import JobError, UserError
from skindx.data.fetch.crawl import run_crawl
from skindx.data.fetch.page_cache import PAGES
from skindx.data.fetch.settings import FetchSettings, Partition
from skindx.data.layout import BLOCKLIST, STORE
from skindx.data.ledger import LedgerRow, held_ledger, open_ledger, read_ledger
from skindx.data.runner import TaskRunner
from skindx.data.sources.source import WebSource
from skindx.taxonomy import Taxonomy

_TRIED = frozenset({"timeout", "server-error", "unreachable"})
"""Of the passing reasons not robots: a part cannot follow a robots.txt to another part's host."""

PARTS = ".parts"
"""Folder in the dataset folder: one small dataset folder a part, all with the same store."""


def fetch_in_parts(
    sources: Sequence[WebSource],
    fetch: FetchSettings,
    dataset: Path,
    *,
    taxonomy: Taxonomy | None,
    runner: TaskRunner,
    on_progress: Callable[[int, int], None],
) -> frozenset[str]:
    """Crawl in `runner.fetch_parts` parts and merge their ledgers into the dataset's.

    Returns the URLs that failed for a passing reason: the next run tries them again, this one has
    tried them often enough. The caller holds the dataset's ledger. Parts that a killed build left
    are merged first, so nothing is fetched twice. Raises JobError for a part that ends its worker
    every time.
    """
    merge_parts(dataset)
    if runner.fetch_parts == 1:
        return frozenset()
    tasks = []
    rows = read_ledger(dataset)
    for index in range(runner.fetch_parts):
        partition = Partition(index=index, count=runner.fetch_parts)
        part = make_part(dataset, partition, rows, sources)
        own = fetch.model_copy(update={"partition": partition})
        tasks.append((part, tuple(sources), own, taxonomy))
    done = 0

    def on_part(task: tuple[Path, object, object, object]) -> None:
        nonlocal done
        done += len(read_ledger(task[0]))
        on_progress(done, 0)

    lost = runner.run(fetch_part, tasks, on_part)
    failed = {row.url for row in merge_parts(dataset) if row.status in _TRIED}
    if lost:
        raise JobError(
            f"{len(lost)} of {len(tasks)} crawls ended with their worker each time; what they "
            f"fetched is kept, run the same command again to go on."
        )
    return frozenset(failed)


def make_part(
    dataset: Path,
    partition: Partition,
    rows: Sequence[LedgerRow],
    sources: Sequence[WebSource] = (),
) -> Path:
    """Make a part's folder, which knows what is known of its hosts; return its absolute path.

    Where `sources` fetch an image from a mirror, its host is the mirror's.
    """
    part = dataset.absolute() / PARTS / f"{partition.index:05d}"
    part.mkdir(parents=True)
    for shared in (STORE, PAGES):
        (dataset / shared).mkdir(exist_ok=True)
    if (dataset / BLOCKLIST).exists():
        shutil.copyfile(dataset / BLOCKLIST, part / BLOCKLIST)
    for shared in (STORE, PAGES):
        (part / shared).symlink_to(os.path.join("..", "..", shared))  # noqa: PTH118 (relative)
    with open_ledger(part) as ledger:
        ledger.extend(
            row
            for row in rows
            if any(
                partition.holds(url)
                for url in {row.url, *(source.address(row.url) for source in sources)}
            )
        )
    return part


def fetch_part(
    part: Path, sources: Sequence[WebSource], fetch: FetchSettings, taxonomy: Taxonomy | None
) -> None:
    """Crawl one part; a task of the runner."""
    try:
        with held_ledger(part) as lock:
            run_crawl(sources, fetch, part, taxonomy=taxonomy, lock=lock)
    except UserError:
        return  # such as a full disk: the crawl that follows meets it too, and says so


def merge_parts(dataset: Path) -> list[LedgerRow]:
    """Move what parts know and the dataset's ledger does not into it, sorted; remove the parts."""
    folder = dataset / PARTS
    if not folder.exists():
        return []
    known = {(row.url, row.label): row for row in read_ledger(dataset)}
    new: dict[tuple[str, str], LedgerRow] = {}
    for part in sorted(folder.iterdir()):
        with held_ledger(part):
            for row in read_ledger(part):
                if known.get((row.url, row.label)) != row:
                    new.setdefault((row.url, row.label), row)
    rows = sorted(new.values(), key=lambda row: (row.label, row.url))
    with open_ledger(dataset) as ledger:
        ledger.extend(rows)
    shutil.rmtree(folder)
    return rows
