"""Entry point of a rank: `python -m skindx.training.launching.rank [--worker=MODULE] RUN DATASET`.

It writes a note before it loads torch and DeepSpeed, which takes seconds: a rank that is killed
meanwhile is known by its note. With `--worker` it runs the `main` of a module as one of several
workers that each train alone, in a world of one rank; RANK and WORLD_SIZE say which of how many.
"""

import gc
import importlib
import os
import signal
import sys
from functools import partial
from pathlib import Path
from types import FrameType

from skindx.training.launching.place import settle_place
from skindx.training.launching.supervise import RANKS, WORKER, write_note

_RANK = "skindx.training.jobs"
"""Module that a rank runs, by name: this lower layer must not import it."""

AS_WORKER = "--worker="


def begin(run: Path) -> None:
    """Write the first note; a SIGTERM before the training listens for it is noted too."""
    if "RANK" not in os.environ:
        settle_place()  # DeepSpeed's runner lets srun say which rank this is
    note = partial(write_note, run / RANKS)
    note("at work")

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        note("asked to stop")
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, on_sigterm)


if __name__ == "__main__":
    module, arguments = _RANK, sys.argv[1:]
    if arguments[0].startswith(AS_WORKER):
        module = arguments.pop(0).removeprefix(AS_WORKER)
        os.environ[WORKER] = os.environ.get("RANK", "0")
    begin(Path(arguments[0]))
    # Torch is a million objects that stay to the end: garbage collection never goes through them.
    gc.disable()
    main = importlib.import_module(module).main
    from skindx.workers.worker_process import leave_process

    gc.freeze()
    gc.enable()
    leave_process(main(arguments))
