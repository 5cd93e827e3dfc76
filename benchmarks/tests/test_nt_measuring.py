"""Timing products: what is timed, and that it ends."""

import pytest
import torch

from skindx_bench.gemm import learning
from skindx_bench.gemm.learning import PRODUCTS, ProductShape, dtypes_of, measure, shapes_of


def test_products_of_all_uses_are_timed_on_one_thread_and_on_all() -> None:
    sizes = [one for own in PRODUCTS.values() for one in own]
    assert all(m > 0 and n > 0 and k > 0 and blocks >= 0 for m, n, k, blocks in sizes)
    shapes = shapes_of(sizes, "cpu")
    assert len(set(shapes)) == len(shapes)
    assert {shape.matrices for shape in shapes} == set(sizes)
    assert {shape.dtype for shape in shapes} == set(dtypes_of("cpu"))
    assert shapes == shapes_of(sizes, "cpu")


@pytest.mark.parametrize("flags", [set(), {"avx512_bf16"}, {"amx_bf16"}])
def test_bf16_where_the_processor_has_it(flags: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "cpu_flags", lambda: frozenset(flags))
    assert ("bfloat16" in dtypes_of("cpu")) == bool(flags)
    assert "bfloat16" in dtypes_of("cuda")


def test_both_ways_are_timed_and_threads_are_as_before() -> None:
    before = torch.get_num_threads()
    shapes = [ProductShape(4, 5, 6), ProductShape(4, 5, 6, 3), ProductShape(4, 5, 6, threads=2)]
    found, turns = measure(shapes, 5)
    assert turns == len(shapes)
    assert [one.shape for one in found] == shapes
    for one in found:
        assert 4 <= len(one.nt_s) == len(one.transposed_s) <= 7
        assert min(*one.nt_s, *one.transposed_s) > 0
        assert one.seconds == (min(one.nt_s), min(one.transposed_s))
    assert torch.get_num_threads() == before


def test_what_does_not_fit_into_time_or_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measure([ProductShape(900, 900, 900)], 1e-3) == ([], 1)
    assert measure([ProductShape(4, 5, 6)], -1) == ([], 0)
    monkeypatch.setattr(learning, "free_bytes", lambda device: 1000)
    assert measure([ProductShape(40, 50, 60)], 5) == ([], 1)
    assert len(measure([ProductShape(2, 2, 2)], 5)[0]) == 1
