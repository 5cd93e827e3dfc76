"""Products with a transpose are timed on a GPU, both ways."""

import pytest

from skindx_bench.gemm.learning import learn, measure, shapes_of

pytestmark = pytest.mark.gpu


def test_products_are_timed_and_a_tree_is_learned(device: str) -> None:
    shapes = shapes_of([(64, 64, 64, 0), (8, 16, 32, 4), (1, 9, 512, 0)], device)
    timed, turns = measure(shapes, 20, device)
    assert len(timed) == turns == len(shapes)
    assert set(learn(timed).dtypes) == {shape.dtype for shape in shapes}
