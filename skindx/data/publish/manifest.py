"""The published manifest: a Parquet table with a row an image."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from skindx.core.atomic_files import atomic_file
from skindx.data.box import Box
from skindx.data.layout import MANIFEST
from skindx.data.manifest import check_row, read_rows
from skindx.data.publish.columns import arrow_schema
from skindx.data.publish.row import Row


def write_rows(folder: Path, rows: Sequence[Row]) -> None:
    """Write `folder`/manifest.parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    plain = [dataclasses.asdict(row) for row in rows]
    with atomic_file(folder / MANIFEST) as temporary:
        pq.write_table(pa.Table.from_pylist(plain, schema=arrow_schema()), temporary)


def read_published(folder: Path) -> list[Row]:
    """Read a published folder's manifest. Raises UserError when it is none."""
    rows = read_rows(folder / MANIFEST, Row, "run `skindx publish`")
    for row in rows:
        check_row(folder, row)
        if row.get("boxes") is not None:
            row["boxes"] = tuple(Box(**box) for box in row["boxes"])
    return [Row(**row) for row in rows]
