"""How often intervals hold the truth."""

from blocks.texts import Load, bench_machine
from skindx_bench.honesty.intervals import cells_of, table

_INTERVALS = "intervals.json"


def coverage(load: Load) -> str:
    """Return how often intervals hold the true figure."""
    written = load(_INTERVALS)
    return table(cells_of(written)) + "\n" + bench_machine(written)
