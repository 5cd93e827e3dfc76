"""Bring pictures into a dataset folder."""

from collections.abc import Callable, Sequence
from pathlib import Path

from skindx.data.fetch.settings import FetchSettings
from skindx.data.ledger import LedgerRow
from skindx.data.sources import Source
from skindx.data.sources.folder import read_folder


def acquire(
    sources: Sequence[Source],
    fetch: FetchSettings,
    dataset: Path,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[LedgerRow]:
    """Return what became of every picture that the sources name."""
    return [row for source in sources for row in read_folder(source, dataset)]
