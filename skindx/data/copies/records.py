"""`copies.parquet`: the evidence for each pair, by SHA-256, and what persons said of it."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import UserError
from skindx.data.copies.copy import ACCEPT, REVIEW, Copy
from skindx.data.copies.shards import sha256_of

COPIES = "copies.parquet"

Pair = tuple[str, str]
"""Two SHA-256, the smaller one first."""


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """One row; `Copy` says what the columns mean. sha256_a < sha256_b."""

    sha256_a: str
    sha256_b: str
    probability: float
    inliers: int
    ncc: float
    covered: float
    mirrored: bool
    transform: tuple[float, ...]
    """From a to b."""

    @property
    def pair(self) -> Pair:
        """Return what names the pair."""
        return self.sha256_a, self.sha256_b


def records_of(copies: Iterable[Copy], paths: Sequence[str]) -> list[CopyRecord]:
    """Return rows for what `find_copies` found among `paths`, sorted."""
    rows = []
    for found in copies:
        names = sha256_of(paths[found.first]), sha256_of(paths[found.second])
        copy = found if names[0] < names[1] else found.turned()
        first, second = sorted(names)
        shown = (copy.probability, copy.inliers, copy.ncc, copy.covered, copy.mirrored)
        rows.append(CopyRecord(first, second, *shown, copy.transform_23))
    return sorted(rows, key=lambda row: row.pair)


def write_copies(file: Path, rows: Sequence[CopyRecord]) -> None:
    """Write rows, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {
        "sha256_a": pa.string(),
        "sha256_b": pa.string(),
        "probability": pa.float64(),
        "inliers": pa.int32(),
        "ncc": pa.float64(),
        "covered": pa.float64(),
        "mirrored": pa.bool_(),
        "transform": pa.list_(pa.float64()),
    }
    plain = [asdict(row) for row in rows]
    columns = {name: pa.array([row[name] for row in plain], kind) for name, kind in types.items()}
    with atomic_file(file) as temporary:
        pq.write_table(pa.table(columns), temporary)


def read_copies(file: Path) -> list[CopyRecord]:
    """Read rows. Raises UserError for a file that is no table of copies."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(file, columns=[field.name for field in fields(CopyRecord)]).to_pylist()
    except (pa.ArrowException, OSError, KeyError) as error:
        raise UserError(
            f"{file} is no table of copies ({error}); build the dataset again."
        ) from None
    return [CopyRecord(**{**row, "transform": tuple(row["transform"])}) for row in rows]


def pair_of(one: str, other: str) -> Pair:
    """Return the name of a pair, in whichever order it is given."""
    return (one, other) if one < other else (other, one)


def verdict(row: CopyRecord, answers: dict[Pair, bool]) -> str:
    """Return same, uncertain or different; a person's answer goes before the probability."""
    said = answers.get(row.pair)
    if said is not None:
        return "same" if said else "different"
    if row.probability >= ACCEPT:
        return "same"
    return "uncertain" if row.probability >= REVIEW else "different"
