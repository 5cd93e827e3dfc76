"""How many rows each rank has of some."""


def sizes_of(count: int, ranks: int) -> tuple[int, ...]:
    """Share out `count` rows, the first ranks one more where it does not divide."""
    return tuple(count // ranks + (rank < count % ranks) for rank in range(ranks))
