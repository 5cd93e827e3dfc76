"""Crawls: processes apart that read a job from standard input and answer through the ledger.

The parent checks the sources, starts the process, follows the ledger and ends it. With a runner
of several workers, hosts are crawled in parts first: each part reads all sources, asks only the
hosts that are its own, and has its own ledger, merged into the dataset's. The one crawl that
follows on the driver asks again for pages alone: parts make it shorter, never change its result.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from skindx.core.errors import FULL_DISK, JobError, UserError, full_disk, is_full, no_room
from skindx.core.machine import require_extra
from skindx.core.settings_base import Settings
from skindx.core.startup import collect_rarely
from skindx.data.crawl.fetch_settings import FetchSettings, OriginPolicy, Partition, origin_of
from skindx.data.layout import BLOCKLIST, LOG, PAGES, STORE
from skindx.data.ledger import (
    LedgerRow,
    held_ledger,
    open_ledger,
    read_ledger,
    read_lines,
    row_of,
    whole_size,
)
from skindx.data.sources.image_source import Source, WebSource
from skindx.taxonomy import Taxonomy
from skindx.workers.task_runner import TaskRunner
from skindx.workers.worker_process import exit_with_parent, module_command, start

CrawlProgress = Callable[[int, int], None]
"""Called with how many answers there are, and how many images are known."""

PARTS = ".parts"
"""Folder in the dataset folder: one small dataset folder a part, all with the same store."""

_POLL_S = 0.1
_TRIED = frozenset({"timeout", "server-error", "unreachable"})
"""Of the passing reasons not robots: a part cannot follow a robots.txt to another part's host."""


class CrawlJob(Settings):
    """The parent's request, one line of JSON on standard input."""

    sources: tuple[Source, ...]
    fetch: FetchSettings
    dataset: Path
    tried: frozenset[str] = frozenset()
    """URLs that failed in this very run; what the ledger says of them is final for now."""
    taxonomy: Taxonomy | None = None
    """Labels with a class; others are not fetched. None: all are fetched."""


def check_sources(sources: Sequence[WebSource], fetch: FetchSettings) -> bool:
    """Raise UserError for a source that may not or cannot be asked, before anybody is.

    Return whether others than servers of the user's own will be asked.
    """
    for source in sources:
        if source.disabled and not source.permission.strip():
            raise UserError(
                f"{source.name} is disabled: {source.disabled.rstrip('.')}; ask for permission, "
                f'then set the source\'s permission: "who gave it, when".'
            )
    require_extra("data", "scrapy", purpose=f"fetching {sources[0].name}")
    local = {origin for origin in fetch.origins if urlsplit(origin).netloc in fetch.allow_private}
    is_local = []
    for source in sources:
        try:
            is_local.append(set(map(origin_of, source.check())) <= local)
        except ValueError as error:
            raise UserError(f"{error}; write it as http://host/path.") from None
    for source, local_only in zip(sources, is_local, strict=True):
        if source.needs_contact and not fetch.contact and not local_only:
            raise UserError(
                f"{source.name} refuses programs that do not say whom to contact; set "
                f"fetch.contact to a URL or mail address of yours."
            )
    return not all(is_local)


def run_crawl(
    sources: Sequence[WebSource],
    fetch: FetchSettings,
    dataset: Path,
    *,
    taxonomy: Taxonomy | None,
    lock: int,
    on_progress: CrawlProgress | None = None,
    tried: frozenset[str] = frozenset(),
) -> list[dict[str, Any]]:
    """Run the crawl process to its end, following the ledger; return the notes of this run.

    `lock` is the descriptor of the held ledger; URLs in `tried` are not asked for again. Raises
    JobError for a process that ends before its work is done, and UserError for a full disk.
    """
    job = {
        "sources": [source.model_dump(mode="json") for source in sources],
        "fetch": fetch.model_dump(mode="json"),
        "dataset": str(dataset.absolute()),
        "tried": sorted(tried),
        "taxonomy": taxonomy.model_dump(mode="json") if taxonomy else None,
    }
    begin = whole_size(dataset)
    with (dataset / LOG).open("wb") as log:
        process = start(
            module_command("skindx.data.crawl.crawl_process"),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            # The lock lives until the crawl has ended, even if this process is killed before.
            pass_fds=(lock,),
        )
    assert process.stdin
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        notes = _follow(process, dataset, begin, on_progress or (lambda done, known: None))
    finally:
        process.kill()
        process.wait()
        with suppress(BrokenPipeError):
            process.stdin.close()
    if process.returncode == FULL_DISK or (process.returncode and is_full(dataset)):
        raise full_disk(dataset)
    if process.returncode or not any(note["note"] == "finished" for note in notes):
        tail = (dataset / LOG).read_text("utf-8", "replace").splitlines()[-15:]
        raise JobError(
            f"The crawl process ended with code {process.returncode} before its work was done; "
            f"run the same command again to go on. The end of {dataset / LOG}:\n" + "\n".join(tail)
        )
    return notes


def _follow(
    process: subprocess.Popen[bytes], dataset: Path, begin: int, on_progress: CrawlProgress
) -> list[dict[str, Any]]:
    notes: list[dict[str, Any]] = []
    written = known = had = 0
    reported = (0, 0)
    while True:
        ended = process.poll() is not None  # asked before reading: no line can come after
        lines, begin = read_lines(dataset, begin)
        for line in lines:
            if row_of(line):
                written += 1
            else:
                notes.append(line)
                known, had = line.get("known", known), line.get("had", had)
        if (had + written, known) != reported:
            reported = (had + written, known)
            on_progress(min(reported), known)
        if ended:
            return notes
        time.sleep(_POLL_S)


def fetch_in_parts(
    sources: Sequence[WebSource],
    fetch: FetchSettings,
    dataset: Path,
    *,
    taxonomy: Taxonomy | None,
    runner: TaskRunner,
    on_progress: CrawlProgress,
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
        settings = fetch.model_copy(update={"partition": partition})
        tasks.append((part, tuple(sources), settings, taxonomy))
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
    if (dataset / BLOCKLIST).exists():
        shutil.copyfile(dataset / BLOCKLIST, part / BLOCKLIST)
    for shared in (STORE, PAGES):
        (dataset / shared).mkdir(exist_ok=True)
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


def crawl(job: CrawlJob) -> bool:
    """Crawl and return whether all came to its end. Once a process: the reactor cannot restart."""
    from scrapy import signals
    from scrapy.crawler import AsyncCrawlerProcess

    from skindx.data.blocklist import read_blocklist
    from skindx.data.crawl.crawl_state import CrawlState
    from skindx.data.crawl.fetch_settings import scrapy_settings
    from skindx.data.crawl.spider import ImageSpider

    ended = []
    sources = [source for source in job.sources if isinstance(source, WebSource)]
    fetch = with_endpoints(job.fetch, sources)
    with open_ledger(job.dataset) as ledger:
        state = CrawlState(
            ledger,
            read_ledger(job.dataset),
            job.dataset,
            blocked=read_blocklist(job.dataset / BLOCKLIST),
            tried=job.tried,
            taxonomy=job.taxonomy,
        )
        process = AsyncCrawlerProcess(scrapy_settings(fetch))
        crawler = process.create_crawler(ImageSpider)

        def closed(spider: ImageSpider, reason: str) -> None:
            if reason == "finished":
                spider.finish()
                ended.append(True)

        def broken(failure: Any) -> None:
            # A row would be missing: better no end at all than an end with a gap.
            os._exit(FULL_DISK if no_room(failure.value) else 4)

        crawler.signals.connect(closed, signals.spider_closed)
        crawler.signals.connect(broken, signals.spider_error)
        process.crawl(crawler, sources=sources, fetch=fetch, dataset=job.dataset, state=state)
        process.start(install_signal_handlers=False)
    return bool(ended)


def with_endpoints(fetch: FetchSettings, sources: Sequence[WebSource]) -> FetchSettings:
    """Give each API its own delay, one request at once; origins that the user named win."""
    origins = {
        origin_of(source.endpoint): OriginPolicy(concurrency=1, delay_s=source.request_delay_s)
        for source in sources
        if source.endpoint and source.request_delay_s is not None
    }
    return fetch.model_copy(update={"origins": origins | fetch.origins})


def main() -> int:
    """Run the crawl process; 0 if it came to its end, with its results in the ledger."""
    collect_rarely()
    job = CrawlJob.model_validate_json(sys.stdin.buffer.readline())
    # Ctrl-C reaches the whole group; the parent decides, and ends this process by closing stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent()
    return 0 if crawl(job) else 1


if __name__ == "__main__":
    sys.exit(main())
