"""A crawl: a process apart that reads a job from standard input and answers through the ledger.

The parent checks the sources, starts the process, follows the ledger and ends it.
"""

import json
import os
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
from skindx.data.crawl.fetch_settings import FetchSettings, OriginPolicy, origin_of
from skindx.data.layout import BLOCKLIST, LOG
from skindx.data.ledger import open_ledger, read_ledger, read_lines, row_of, whole_size
from skindx.data.sources.image_source import WebSource
from skindx.data.sources.source_kinds import Source
from skindx.taxonomy import Taxonomy
from skindx.workers.worker_process import exit_with_parent, module_command, start

CrawlProgress = Callable[[int, int], None]
"""Called with how many answers there are, and how many images are known."""

_POLL_S = 0.1


class CrawlJob(Settings):
    """The parent's request, one line of JSON on standard input."""

    sources: tuple[Source, ...]
    fetch: FetchSettings
    dataset: Path
    taxonomy: Taxonomy | None = None
    """Labels with a class; others are not fetched. None: all are fetched."""


def check_sources(sources: Sequence[WebSource], fetch: FetchSettings) -> bool:
    """Raise UserError for a source that may not or cannot be asked, before anybody is.

    Return whether others than servers of the user's own will be asked.
    """
    for source in sources:
        if source.disabled and not source.permission.strip():
            raise UserError(
                f"the source {source.name} is disabled ({source.disabled.rstrip('.')}); ask its "
                'owner for permission, then add `permission: "who gave it, when"` to this '
                "source in the recipe."
            )
    require_extra("data", "scrapy", purpose=f"fetching {sources[0].name}")
    local = {origin for origin in fetch.origins if urlsplit(origin).netloc in fetch.allow_private}
    is_local = []
    for source in sources:
        try:
            is_local.append(set(map(origin_of, source.check())) <= local)
        except UserError:
            raise
        except ValueError as error:
            raise UserError(f"{error}; write it in the recipe as http://host/path.") from None
    for source, local_only in zip(sources, is_local, strict=True):
        if source.needs_contact and not fetch.contact and not local_only:
            raise UserError(
                f"the site {source.name} refuses crawlers without a contact address; set "
                "`fetch.contact` in the recipe to your mail address or URL."
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
) -> list[dict[str, Any]]:
    """Run the crawl process to its end, following the ledger; return the notes of this run.

    `lock` is the descriptor of the held ledger. Raises JobError for a process that ends before its
    work is done, and UserError for a full disk.
    """
    job = {
        "sources": [source.model_dump(mode="json") for source in sources],
        "fetch": fetch.model_dump(mode="json"),
        "dataset": str(dataset.absolute()),
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
            f"the crawl stopped early with exit code {process.returncode}; run the same command "
            f"again to continue. The last lines of {dataset / LOG}:\n" + "\n".join(tail)
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


def crawl(job: CrawlJob) -> bool:
    """Crawl and return whether all came to its end. Once a process: the reactor cannot restart."""
    from scrapy import signals
    from scrapy.crawler import AsyncCrawlerProcess

    from skindx.data.blocklist import read_blocklist
    from skindx.data.crawl.fetch_outcome import CrawlState
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
