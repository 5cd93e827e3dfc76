"""Where a worker begins: `python -m skindx.training.hopping.rank RUN DATASET`.

RANK and WORLD_SIZE say which of how many it is; each trains alone, in a world of one rank.
"""

import gc
import os
import sys
import traceback
from functools import partial
from pathlib import Path

from skindx.errors import UserError
from skindx.training.launching.notes import RANKS, WORKER, write_note
from skindx.training.rank import begin


def main(arguments: list[str]) -> int:
    """Work until nothing is left; return the exit code."""
    from skindx.system import go_offline
    from skindx.training.config.run import SETTINGS, TrainSettings
    from skindx.training.deepspeed.joining import join_nobody
    from skindx.training.hopping.worker import Worker
    from skindx.training.launching.stopping import StoppedError, StopRequest, end_with_parent
    from skindx.training.parallel.mesh import leave

    end_with_parent()
    run, dataset = (Path(argument) for argument in arguments)
    note = partial(write_note, run / RANKS)
    rank, workers = int(os.environ[WORKER]), int(os.environ.get("WORLD_SIZE", "1"))
    settings = TrainSettings.load(run / SETTINGS)
    with StopRequest(settings.checkpoint.grace_s, run / RANKS) as stop:
        note("at work")
        go_offline()
        try:
            mesh = join_nobody(settings.engine)
            Worker(run, dataset, settings, mesh, stop, rank=rank, workers=workers).work()
            leave()
        except StoppedError as stopped:
            note("stopped", str(stopped), stop.why)
            leave()
        except UserError as error:
            note("refused")
            print(f"error: {error}", file=sys.stderr)
            return 2
        except Exception:
            note("failed")
            print(f"worker {rank} failed:", file=sys.stderr)
            traceback.print_exc()
            return 1
        else:
            note("finished")
    return 0


if __name__ == "__main__":
    os.environ[WORKER] = os.environ.get("RANK", "0")
    begin(Path(sys.argv[1]))
    gc.freeze()
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
