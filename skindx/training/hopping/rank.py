"""Entry point of a worker: `python -m skindx.training.hopping.rank RUN DATASET`.

RANK and WORLD_SIZE say which of how many it is; each trains alone, in a world of one rank.
"""

import gc
import os
import sys
from pathlib import Path

from skindx.training.launching.rank import begin
from skindx.training.launching.supervise import WORKER


def main(arguments: list[str]) -> int:
    """Work until nothing is left; return the exit code."""
    from skindx.training.config.run import SETTINGS, TrainSettings
    from skindx.training.deepspeed.ranks import join_nobody
    from skindx.training.hopping.hop_worker import Worker
    from skindx.training.jobs import run_to_its_end
    from skindx.training.launching.supervise import StopRequest, end_with_parent

    end_with_parent()
    run, dataset = (Path(argument) for argument in arguments)
    rank, workers = int(os.environ[WORKER]), int(os.environ.get("WORLD_SIZE", "1"))
    settings = TrainSettings.load(run / SETTINGS)

    def work(stop: StopRequest) -> None:
        mesh = join_nobody(settings.engine)
        Worker(run, dataset, settings, mesh, stop, rank=rank, workers=workers).work()

    return run_to_its_end(run, settings.checkpoint.grace_s, f"worker {rank}", work)


if __name__ == "__main__":
    os.environ[WORKER] = os.environ.get("RANK", "0")
    begin(Path(sys.argv[1]))
    gc.freeze()
    code = main(sys.argv[1:])
    from skindx.workers.process import leave_process

    leave_process(code)
