"""A Ray cluster of two workers on this machine, of one core each, and faults to plant in it."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import ray
from ray.cluster_utils import Cluster as Processes

HERE = Path(__file__).parent
_SMALL = {
    "num_cpus": 1,
    "object_store_memory": 80 * 2**20,
    "include_dashboard": False,
}


class RayCluster:
    """Two worker nodes; `address` is what --cluster takes."""

    def __init__(self, poison_log: Path) -> None:
        self.poison_log = poison_log
        self._processes = Processes(initialize_head=True, head_node_args=_SMALL)
        self.address = self._processes.address
        self.grow()

    def grow(self) -> None:
        """Start the second node."""
        self._second = self._processes.add_node(**_SMALL)

    def kill_node(self) -> None:
        """Kill the second node, its workers with it."""
        self._processes.remove_node(self._second, allow_graceful=False)

    def kill_workers(self) -> int:
        """Kill each process that works on a task; return how many there were."""
        killed = 0
        ours = f"SKINDX_POISON_LOG={self.poison_log}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                title = (process / "cmdline").read_bytes()
                if title.startswith(b"ray::_work") and ours in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)
                    killed += 1
            except OSError:
                continue
        return killed

    def shutdown(self) -> None:
        self._processes.shutdown()


@contextmanager
def ray_cluster(folder: Path) -> Iterator[RayCluster]:
    """Start the cluster with the poison of `poison/sitecustomize.py` in every worker."""
    log = folder / "poison.log"
    environment = {
        "PYTHONPATH": os.pathsep.join([str(HERE / "poison"), str(HERE.parents[1])]),
        "SKINDX_POISON_LOG": str(log),
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    with patch.dict(os.environ, environment):
        cluster = RayCluster(log)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
