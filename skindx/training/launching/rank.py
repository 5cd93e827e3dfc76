"""Entry point of a rank: `python -m skindx.training.launching.rank RUN DATASET`.

It writes a note before it loads torch and DeepSpeed, which takes seconds: a rank that is killed
meanwhile is known by its note.
"""

import gc
import os
import signal
import sys
from functools import partial
from pathlib import Path
from types import FrameType

from skindx.training.launching.place import settle_place
from skindx.training.launching.supervise import RANKS, write_note


def begin(run: Path) -> None:
    """Write the first note; a SIGTERM before the training listens for it is noted too."""
    if "RANK" not in os.environ:
        settle_place()  # DeepSpeed's runner lets srun say which rank this is
    note = partial(write_note, run / RANKS)
    note("at work")

    def asked(number: int, frame: FrameType | None) -> None:
        note("asked to stop")
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, asked)


if __name__ == "__main__":
    begin(Path(sys.argv[1]))
    # Torch is a million objects that stay to the end: garbage collection never goes through them.
    gc.disable()
    from skindx.training.jobs import main
    from skindx.workers.process import leave_process

    gc.freeze()
    gc.enable()
    leave_process(main(sys.argv[1:]))
