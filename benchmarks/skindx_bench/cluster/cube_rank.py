"""One rank of the comparison of 3-D with 1-D products, a process in a namespace.

Commands and answers are lines of JSON; the first line is the job.
"""

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from skindx.training.methods.sharding.communicator import Communicator
from skindx.training.methods.sharding.cubes import Cube, cube_product
from skindx.training.methods.sharding.transformer import split_pair
from skindx.training.parallel.mesh import ProcessGroup, sizes_of
from skindx_bench.harness.answering import Commands, answer_commands

_TIMEOUT = timedelta(minutes=3)


class CubeRank:
    """Two products, one after the other, in each form."""

    def __init__(self, rows: int, width: int) -> None:
        """Join the others, and take this rank's parts."""
        dist.init_process_group("gloo", timeout=_TIMEOUT)
        self._cube = Cube.of_all(_TIMEOUT)
        self._line = Communicator(ProcessGroup(dist.get_rank(), dist.get_world_size()))
        torch.manual_seed(0)
        x, first = torch.randn(rows, width), nn.Linear(width, width, bias=False)
        second = nn.Linear(width, width, bias=False)
        self._weights = [
            self._cube.own_weight(first.weight.detach()),
            self._cube.next.own_weight(second.weight.detach()),
        ]
        self._own = self._cube.own_input(x)
        self._x = x
        split_pair(first, second, sizes_of(width, self._line.size), 1, self._line)
        self._pair = nn.Sequential(first, second)

    def products(self, form: str) -> dict[str, Any]:
        """Compute both, forward and backward; return seconds and bytes."""
        dist.barrier()
        before = self._cube.bytes_sent + self._line.bytes_sent
        began = time.perf_counter()
        if form == "line":
            y = self._pair(self._x.requires_grad_())
        else:
            y = self._on_the_cube(keep=form == "keep")
        torch.autograd.backward(y, torch.ones_like(y))
        dist.barrier()
        seconds = time.perf_counter() - began
        return {
            "seconds": seconds,
            "sent": self._cube.bytes_sent + self._line.bytes_sent - before,
        }

    def _on_the_cube(self, *, keep: bool) -> Tensor:
        first, second = (weight.requires_grad_() for weight in self._weights)
        between = cube_product(self._own.requires_grad_(), first, self._cube, keep=keep)
        return cube_product(between, second, self._cube.next, keep=keep)


def _commands(job: dict[str, Any]) -> Commands:
    return {"products": CubeRank(**job).products}


def main() -> None:
    """Answer the bench's commands."""
    torch.set_num_threads(1)
    answer_commands(_commands)


if __name__ == "__main__":
    main()
