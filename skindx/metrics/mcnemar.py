"""McNemar's exact test of two predictors on the same images."""

from dataclasses import dataclass

from skindx.metrics.inputs import Bools


@dataclass(frozen=True, slots=True)
class McNemar:
    """How many images only one of two predictors names rightly, and the two-sided p-value."""

    only_first: int
    only_second: int
    p: float


def mcnemar(first_right_N: Bools, second_right_N: Bools) -> McNemar:
    """Test whether both are right equally often (McNemar 1947; exact binomial form).

    It takes every image for an independent trial: with several images a group the p-value is
    too small, and the paired bootstrap over groups is the one to believe.
    """
    if first_right_N.shape != second_right_N.shape:
        raise ValueError(
            f"need the same images, got {first_right_N.shape} and {second_right_N.shape}"
        )
    first = int((first_right_N & ~second_right_N).sum())
    second = int((~first_right_N & second_right_N).sum())
    n = first + second
    # Whole numbers: exact for any n, where a float would underflow.
    tail = ways = 1
    for k in range(min(first, second)):
        ways = ways * (n - k) // (k + 1)
        tail += ways
    return McNemar(first, second, min(1.0, 2 * tail / 2**n))
