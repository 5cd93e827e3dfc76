"""Run every source of a recipe into the store and the ledger."""

from collections.abc import Callable, Sequence
from pathlib import Path

from skindx.config import Settings
from skindx.data.ledger import LedgerRow
from skindx.data.sources import Source
from skindx.data.sources.folder import read_folder


class FetchSettings(Settings):
    """How politely to fetch."""


def acquire(
    sources: Sequence[Source],
    fetch: FetchSettings,
    dataset: Path,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> list[LedgerRow]:
    """Return what became of every picture that the sources name."""
    return [row for source in sources for row in read_folder(source, dataset)]
