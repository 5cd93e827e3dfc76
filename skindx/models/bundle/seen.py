"""SHA-256 of the images that a bundle was made from."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from skindx.data.manifest import Record, Split
from skindx.models.tables import read_rows

SEEN = "seen.parquet"


def write_seen(path: Path, records: Iterable[Record]) -> None:
    """Write SHA-256 and split of each image of the dataset that a bundle is packed from."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = sorted((record.sha256, record.split) for record in records)
    columns = {"sha256": [sha256 for sha256, _ in rows], "split": [split for _, split in rows]}
    pq.write_table(pa.table(columns, schema=_schema()), path)


def read_seen(path: Path) -> Mapping[str, Split]:
    """Return the split of each image. Raises UserError for what is no such table."""
    table = read_rows(path, _schema())
    return dict(zip(table["sha256"].to_pylist(), table["split"].to_pylist(), strict=True))


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema([("sha256", pa.string()), ("split", pa.string())])
