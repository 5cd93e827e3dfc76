"""When the factors of a linear layer's gradient are fewer bytes than the gradient itself."""

_SAVES = 2
"""How many times fewer bytes there must be: factors cost a product on every rank."""


def factors_pay(rows: int, inside: int, outside: int, ranks: int, bytes_each: int = 4) -> bool:
    """Tell whether a layer `outside` x `inside` sends less by its factors.

    A gradient is a sum over `rows` of a rank, each an output gradient times an input. A ring
    all-reduce sends 2 (P - 1) / P of the matrix in fp32, an all-gather P - 1 times a rank's
    factors, which have `bytes_each` an element.
    """
    gradient = 2 * inside * outside * 4 / ranks
    return ranks > 1 and _SAVES * rows * (inside + outside) * bytes_each <= gradient
