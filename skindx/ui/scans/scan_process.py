"""The process of a scan: FOLDER.

A line of JSON on standard output is a message: `stage`, `done` and `known` while it goes on, at
the end `ended`, or `error` with a sentence, or `failed`. The same command goes on with a scan whose
process was killed.
"""

import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skindx.core.errors import JobError, UserError, is_full, no_room
from skindx.core.machine import go_offline
from skindx.core.private_files import write_private
from skindx.core.startup import collect_rarely
from skindx.diagnosis.case import MAX_PHOTOS
from skindx.scan.outputs.scan_result import SUMMARY
from skindx.taxonomy import Taxonomy
from skindx.texts.catalogue import LANGUAGE, speaking, text, word
from skindx.ui.page_basics import hide_messages, log_fault, stoppable
from skindx.ui.scans.scan_answer import answer_of, list_html
from skindx.ui.scans.scan_job import (
    ANSWER,
    LIST,
    PHOTOS,
    RESULTS,
    ScanOrder,
    photo_paths,
    remove,
)

if TYPE_CHECKING:
    from skindx.scan.work.scan_driver import MakeWorkers


log = logging.getLogger(__name__)

_NICE = 10
"""People wait for diagnoses on the page; a scan gives way to them."""
_PATIENCE_S = 10.0
_COMMANDS = {
    "unscanned_one": "unscanned_one_page",
    "ruler_again": "ruler_again_page",
    "ruler_instead": "ruler_instead_page",
}
"""What the command line advises, and the sentence for a user of the page."""

Send = Callable[[dict[str, Any]], None]


def main(arguments: Sequence[str], make_workers: "MakeWorkers | None" = None) -> None:
    """Scan by the order in a folder, the only argument; send how it ended.

    Ends with this process's standard input.
    """
    folder = Path(arguments[0])
    go_offline()
    collect_rarely()
    hide_messages()
    send = _sender()
    scans, gone = folder.parent, threading.Event()
    os.nice(_NICE)
    with stoppable():
        try:
            threading.Thread(target=_watch_server, args=(scans, gone), daemon=True).start()
            with speaking(_language(folder)):
                message = outcome_of(folder, lambda: _scan(folder, send, make_workers))
            # The server ends this process once it has heard; it is ending already.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            send(message)
        except KeyboardInterrupt:
            pass  # deleted, or the server ends; the workers have ended already
    if gone.is_set():
        remove(scans)


def _language(folder: Path) -> str:
    """Return the language of a scan's sentences; English for an order that cannot be read."""
    with suppress(UserError):
        return ScanOrder.read(folder).language
    return LANGUAGE


def outcome_of(folder: Path, work: Callable[[], None]) -> dict[str, Any]:
    """Do a server's work in a folder and return how it ended, as a message."""
    try:
        work()
    except (UserError, JobError, OSError) as error:
        if no_room(error):
            log.error("the disk of the server's scans is full")
            return {"error": text("scan_full")}
        if isinstance(error, UserError):
            return {"error": sentence_of(error, folder)}
        log_fault(log, "a scan failed", error)
    except Exception as error:
        log_fault(log, "a scan failed", error)
    else:
        return {"ended": True}
    return {"error": text("scan_full")} if is_full(folder) else {"failed": True}


def _watch_server(scans: Path, gone: threading.Event) -> None:
    """End the scan as soon as the server is gone, which can delete nothing any more.

    The main thread ends its workers first: they would make new files.
    """
    while os.read(0, 4096):
        pass
    gone.set()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE_S)  # a library may keep the main thread
    remove(scans)
    os._exit(1)


def sentence_of(error: UserError, folder: Path) -> str:
    """Return what a person reads of an error: no path of this machine, no command."""
    message = str(error)
    for path in photo_paths(folder, MAX_PHOTOS):
        message = message.replace(str(path), word(path.name))
    message = message.replace(f"{folder / PHOTOS}{os.sep}", "").replace(f"{folder}{os.sep}", "")
    for command, advice in _COMMANDS.items():
        message = message.replace(text(command), text(advice))
    return message


def _sender() -> Send:
    """Return what sends a message; whatever else is printed goes to standard error."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: dict[str, Any]) -> None:
        with suppress(OSError):  # the server is gone, and `_watch_server` ends the scan
            stream.write(json.dumps(message) + "\n")
            stream.flush()

    return send


def _scan(folder: Path, send: Send, make_workers: "MakeWorkers | None" = None) -> None:
    from skindx.models.bundle.bundle import TAXONOMY
    from skindx.scan.scan_run import run_scan
    from skindx.scan.tile_search import ScanSettings
    from skindx.scan.work.scan_worker import WORK

    order, results = ScanOrder.read(folder), folder / RESULTS
    detector = Path(order.detector) if order.detector else None
    if detector:
        _check_detector(detector, order.detector_digest)
    if not (results / SUMMARY).is_file() or (results / WORK).exists():
        run_scan(
            photo_paths(folder, order.photos),
            Path(order.bundle),
            results,
            ScanSettings(miss_rate=order.miss_rate),
            workers=order.workers,
            expect=order.digest,
            detector=detector,
            progress=lambda stage, done, known: send(
                {"stage": stage, "done": done, "known": known}
            ),
            make_workers=make_workers,
            mm_per_pixel=order.mm_per_pixel or None,
            most_pixels=order.most_megapixels * 10**6,
        )
    send({"stage": "writing", "done": 0, "known": 1})
    answer = answer_of(results, Taxonomy.load(Path(order.bundle) / TAXONOMY))
    write_private(folder / LIST, list_html(results, answer))
    write_private(folder / ANSWER, answer.model_dump_json())
    shutil.rmtree(folder / PHOTOS, ignore_errors=True)


def _check_detector(folder: Path, digest: str) -> None:
    """Raise JobError where the server's detector is another one now: no user can mend that."""
    from skindx.models.shipped_detector import open_shipped

    try:
        open_shipped(folder, digest)
    except UserError as error:
        raise JobError("the detector of the server's scans changed") from error


if __name__ == "__main__":
    main(sys.argv[1:])
