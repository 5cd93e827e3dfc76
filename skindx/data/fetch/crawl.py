"""One crawl: a process of its own, started, followed through the ledger, and ended."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from skindx.core.errors import FULL_DISK, JobError, full_disk, is_full
from skindx.data.fetch.settings import FetchSettings
from skindx.data.layout import LOG
from skindx.data.ledger import read_lines, row_of, whole_size
from skindx.data.sources.source import WebSource
from skindx.taxonomy import Taxonomy
from skindx.workers.process import module_command, start

Progress = Callable[[int, int], None]
"""Called with how many answers there are, and how many images are known."""

_POLL_S = 0.1


def run_crawl(
    sources: Sequence[WebSource],
    fetch: FetchSettings,
    dataset: Path,
    *,
    taxonomy: Taxonomy | None,
    lock: int,
    on_progress: Progress | None = None,
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
            module_command("skindx.data.fetch"),
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
    process: subprocess.Popen[bytes], dataset: Path, begin: int, on_progress: Progress
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
