"""Products on a cube of eight ranks are those of one process, at the bytes of the paper."""

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from skindx_bench.forms.cubes import Cube, cube_product

Q, ROWS, INTO, HIDDEN, OUT = 2, 24, 16, 8, 12
STEP = timedelta(seconds=60)


def _tensors() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((ROWS, INTO), (HIDDEN, INTO), (OUT, HIDDEN), (ROWS, OUT))
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def _two_products() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cube, found = Cube.of_all(STEP), []
    x, first, second, dy = _tensors()
    for keep in (True, False):
        before = cube.bytes_sent
        parts = [
            part.requires_grad_()
            for part in (
                cube.local_input(x),
                cube.local_weight(first),
                cube.next.local_weight(second),
            )
        ]
        hidden = cube_product(parts[0], parts[1], cube, keep=keep)
        # Two products swap j and l twice: rows and columns are as they were.
        y = cube_product(hidden.relu(), parts[2], cube.next, keep=keep)
        y.backward(cube.local_input(dy))
        found.append(
            {
                "y": y.detach().numpy(),
                "gradients": [part.grad.numpy() for part in parts],
                "sent": cube.bytes_sent - before,
                "place": (cube.i.rank, cube.j.rank, cube.l.rank),
            }
        )
    dist.destroy_process_group()
    return found


class _At:
    """A place in the cube without its wires."""

    def __init__(self, rank: int) -> None:
        self.rank, self.size = rank, Q


@pytest.mark.distributed
def test_two_products_equal_one_process_and_send_what_the_formulas_say() -> None:
    x, first, second, dy = (tensor.clone() for tensor in _tensors())
    for tensor in (x, first, second):
        tensor.requires_grad_()
    y = (x @ first.T).relu() @ second.T
    y.backward(dy)
    sizes = [(ROWS, INTO, HIDDEN), (ROWS, HIDDEN, OUT)]
    kept = sum(2 * (m * n + k * n + m * k) for m, n, k in sizes) * (Q - 1) // Q**3
    again = kept + sum(m * n + k * n for m, n, k in sizes) * (Q - 1) // Q**3
    for result in run_ranks(Q**3, _two_products):
        for found, values in zip(result, (kept, again), strict=True):
            cube = Cube(*map(_At, found["place"]))  # type: ignore[arg-type]
            expected = [
                cube.local_input(y.detach()),
                cube.local_input(x.grad),
                cube.local_weight(first.grad),
                cube.next.local_weight(second.grad),
            ]
            for part, whole in zip([found["y"], *found["gradients"]], expected, strict=True):
                torch.testing.assert_close(torch.from_numpy(part), whole, rtol=1e-5, atol=1e-5)
            assert found["sent"] == 4 * values
