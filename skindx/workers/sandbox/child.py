"""The decoding process: paths come in on standard input, ticks and answers go out.

Its limits are the kernel's, so that they hold in the middle of a C library, and also when the
caller is gone: a data segment of fixed size and an alarm clock.
"""

import gc
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

READY = b"ready\n"
TICK = b"tick\n"

Work = Callable[[Sequence[Path]], Iterator[list[Any] | None]]
"""Yields None after each picture, and at the end a list with the answers to all of them."""


def main() -> int:
    """Answer batches until standard input ends."""
    # Whatever a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller decides, by closing our input
    job = json.loads(sys.stdin.buffer.readline())
    work = WORK[job["work"]](job["job"])
    _limit(job["memory_mb"])
    answers.write(READY)
    for line in sys.stdin.buffer:
        _answer(work, [Path(path) for path in json.loads(line)], job["timeout_s"], answers)
    return 0


def _answer(work: Work, paths: Sequence[Path], timeout_s: int, answers: BinaryIO) -> None:
    # The alarm's default is to end the process, wherever it is; each sign of life puts it off.
    signal.alarm(timeout_s)
    for answer in work(paths):
        signal.alarm(timeout_s if answer is None else 0)
        answers.write(TICK if answer is None else json.dumps(answer).encode() + b"\n")


def _limit(memory_mb: int) -> None:
    """Bound what this process may allocate; beyond it allocations fail and pictures are refused.

    RLIMIT_DATA counts all private memory, touched or not (Linux 4.7 and later), but not the code
    of libraries, of which RLIMIT_AS would count every mapped gigabyte.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (memory_mb * 10**6, memory_mb * 10**6))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _import_decoders() -> None:
    """Import all that decoding needs now: after the limit is set, it might fail."""
    import cv2
    import simplejpeg  # noqa: F401
    from PIL import Image

    Image.preinit()
    cv2.setNumThreads(1)  # the processes are the threads
    gc.freeze()  # nothing of all this is ever garbage


def _screen(job: dict[str, Any]) -> Work:
    from skindx.data.screening.screen import ScreenSettings, hash_sound, judge_file, to_plain

    _import_decoders()
    settings, hashes = ScreenSettings.model_validate(job["settings"]), job["hashes"]

    def work(paths: Sequence[Path]) -> Iterator[list[Any] | None]:
        judged = []
        for path in paths:
            judged.append(judge_file(path, settings))
            if not judged[-1][0].width:
                # What a decoder left half done may hold itself; the next one needs the memory.
                gc.collect()
            yield None
        yield [to_plain(each) for each in hash_sound(judged, hashes)]

    return work


def _each(one: Callable[[Path], Any]) -> Work:
    def work(paths: Sequence[Path]) -> Iterator[list[Any] | None]:
        answers = []
        for path in paths:
            answers.append(one(path))
            yield None
        yield answers

    return work


def _clean(job: dict[str, Any]) -> Work:
    from PIL import ImageCms  # noqa: F401

    from skindx.data.publish.clean_files import clean_file

    _import_decoders()
    folder = Path(job["folder"])
    return _each(lambda path: clean_file(path, folder, max_pixels=job["max_pixels"]))


def _shrink(job: dict[str, Any]) -> Work:
    from skindx.imaging.thumbnails import shrink

    _import_decoders()
    folder = Path(job["folder"])
    return _each(lambda path: shrink(path, folder))


def _heic(job: dict[str, Any]) -> Work:
    import pillow_heif

    from skindx.imaging.heic import decode_heic

    _import_decoders()
    pillow_heif.options.DECODE_THREADS = 1  # each would take memory of its own
    pillow_heif.register_heif_opener(thumbnails=False)
    out = Path(job["out"])
    return _each(lambda path: decode_heic(path, out, job["max_pixels"]))


WORK: dict[str, Callable[[dict[str, Any]], Work]] = {
    "screen": _screen,
    "clean": _clean,
    "shrink": _shrink,
    "heic": _heic,
}
"""Name -> what makes the work from its job; what is too large for an answer becomes a file."""
