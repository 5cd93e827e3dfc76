"""Products with a transpose on a GPU: both ways are the product, and are timed there."""

import pytest
import torch
from planted_products import ALWAYS_COPY

from skindx.models.nt_product import NtChoice, nt_product, plain_nt
from skindx_bench.gemm.learning import learn, measure, shapes_of

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("blocks", [0, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_ways_are_the_product(device: str, blocks: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    stack = [blocks] if blocks else []
    a, b = (torch.randn(*stack, rows, 96).to(device, dtype) for rows in (64, 48))
    wanted = a.double() @ b.double().mT
    for multiply in (plain_nt, nt_product(NtChoice(tree=ALWAYS_COPY), device)):
        found = multiply(a, b)
        assert found.device == a.device
        torch.testing.assert_close(found.double(), wanted, rtol=0.05, atol=0.5)


def test_products_are_timed_and_a_tree_is_learned(device: str) -> None:
    shapes = shapes_of([(64, 64, 64, 0), (8, 16, 32, 4), (1, 9, 512, 0)], device)
    timed, turns = measure(shapes, 20, device)
    assert len(timed) == turns == len(shapes)
    assert set(learn(timed).dtypes) == {shape.dtype for shape in shapes}
