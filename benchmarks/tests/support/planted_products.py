"""Trees and timings of products that a test makes up."""

from collections.abc import Callable

from skindx_bench.gemm.learning import FEATURES, ProductShape, ShapeTree, TimedProduct, TreeLeaf


def one_leaf(*, transposed: bool, threads: int = 64) -> ShapeTree:
    """A tree that says the same of every product."""
    return ShapeTree(
        nodes=(TreeLeaf(transposed=transposed, products=9, gain=0.5 if transposed else -0.5),),
        dtypes=("float32", "bfloat16", "float16"),
        least=dict.fromkeys(FEATURES, -60.0),
        most=dict.fromkeys(FEATURES, 60.0) | {"threads": float(threads)},
    )


ALWAYS_COPY = one_leaf(transposed=True)


def timed(shape: ProductShape, nt_over_copy: float, rounds: int = 5) -> TimedProduct:
    """A product of which NT takes so many times what the copy takes, in each round."""
    return TimedProduct(shape, (nt_over_copy * 1e-3,) * rounds, (1e-3,) * rounds)


def grid(nt_over_copy: Callable[[ProductShape], float]) -> list[TimedProduct]:
    """Many products on one and two threads."""
    sides = (8, 32, 128, 512)
    shapes = [
        ProductShape(m, n, k, 0, "float32", threads)
        for m in sides
        for n in sides
        for k in sides
        for threads in (1, 2)
    ]
    return [timed(shape, nt_over_copy(shape)) for shape in shapes]
