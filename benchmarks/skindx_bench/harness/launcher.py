"""Forks the ranks of an emulated cluster: `python -m skindx_bench.harness.launcher JOB`.

JOB is JSON: the module of the ranks, and for each rank its environment, the file of its network
namespace, and the descriptors of its standard input and output. A line of JSON says how each rank
ended. When this process ends, so do the ranks.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from skindx.training.deepspeed.ranks import PRELOADED
from skindx.training.launching.supervise import end_with_parent
from skindx.workers.forked_module import ForkContext, ForkedModule, import_once
from skindx.workers.worker_process import leave_process

_POLL_S = 0.02


def main(job: str) -> None:
    """Fork the ranks, and say how they end until the last one has."""
    end_with_parent(signal.SIGKILL)
    given = json.loads(job)
    import_once([PRELOADED, given["module"]])
    descriptors = [descriptor for place in given["ranks"] for descriptor in place["streams"]]
    left: dict[int, ForkedModule] = {}
    for rank, place in enumerate(given["ranks"]):
        left[rank] = ForkedModule(
            given["module"],
            (),
            ForkContext(
                place["environment"], Path(place["network"]), tuple(place["streams"]), descriptors
            ),
        )
    for descriptor in descriptors:
        os.close(descriptor)
    while left:
        for rank, process in list(left.items()):
            if (code := process.poll()) is not None:
                del left[rank]
                print(json.dumps({"rank": rank, "code": code}), flush=True)
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main(sys.argv[1])
    leave_process(0)
