"""How a process of a training ends: one note, one sentence, one exit code, whatever it did."""

import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from skindx.core.errors import UserError
from skindx.core.machine import go_offline
from skindx.training.launching.notes import RANKS, write_note
from skindx.training.launching.stopping import StoppedError, StopRequest
from skindx.training.parallel.mesh import is_lost, leave


def run_to_its_end(run: Path, grace_s: float, who: str, work: Callable[[StopRequest], None]) -> int:
    """Do the `work` of a rank or a worker of a run, named `who`; return the exit code.

    0: done, or stopped when asked to; 1: it failed, or lost another rank; 2: it refused.
    """
    note = partial(write_note, run / RANKS)
    with StopRequest(grace_s, run / RANKS) as stop:
        note("at work")
        go_offline()
        try:
            work(stop)
            leave()
        except StoppedError as stopped:
            note("stopped", str(stopped), stop.why)
            leave()
        except UserError as error:
            note("refused")
            print(f"error: {error}", file=sys.stderr)
            return 2
        except Exception as error:
            if is_lost(error):
                # The rank that is gone is what matters, not how each of the others noticed.
                note("left")
                print(f"{who} lost another rank and ends", file=sys.stderr)
                return 1
            note("failed")
            print(f"{who} failed:", file=sys.stderr)
            traceback.print_exc()
            return 1
        else:
            note("finished")
    return 0
