"""A rank of the bench of frameworks that computes nothing, and may fail when it is asked to."""

import os
import time
from typing import Any

from skindx_bench.frameworks.rank import answer


class Nothing:
    """Its loss is the mean of its labels; the options say at which step it fails, and how."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._kinds = job["kinds"]

    def version(self) -> str:
        return "nothing 1"

    def join(self, rank: int, ranks: int, address: str, port: int) -> None:
        self._last = rank == ranks - 1

    def build(self, graph: Any, weights: Any, batch: int, options: dict[str, Any]) -> None:
        self._options, self._steps = options, 0

    def copy(self, images: Any, labels: Any) -> Any:
        return labels

    def step(self, batch: Any, stages: Any) -> float:
        self._steps += 1
        if self._steps == self._options.get("fails") and self._last:
            if self._options["how"] == "kill":
                os.kill(os.getpid(), 9)
            raise RuntimeError("no such kernel")
        with stages.stage("forward"):
            time.sleep(0.002)
        return float(batch.mean())

    def drop(self) -> None:
        pass


if __name__ == "__main__":
    answer(Nothing)
