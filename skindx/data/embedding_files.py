"""Embeddings of a dataset's images: the table of `skindx dedup embed`, and files of other towers.

Rows of a file that a tower elsewhere made are joined by SHA-256 or file name, never by their order:
`.npy` needs a file of names, a row's name a line.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tokenize import TokenError

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file, read_parquet, sha256_file
from skindx.core.errors import UserError
from skindx.core.text import counted
from skindx.core.untrusted import MALFORMED, MEGABYTE, open_plain, read_plain
from skindx.data.manifest import Record
from skindx.data.tables.cells import cell
from skindx.data.tables.fields import NeededColumns, TableLog
from skindx.data.tables.reader import read_table

# N = images, D = dimensions

EMBEDDINGS = "embeddings.parquet"
_ADVICE = "create it with `skindx dedup embed DATASET --weights FILE`"
LABEL_FEATURES = "label_features.parquet"
"""Embeddings of all layers, for the label review only; nothing else should search with them."""


@dataclass(frozen=True)
class Embeddings:
    """One vector of length 1 an image, and the model that made them."""

    sha256s: tuple[str, ...]
    vectors_ND: NDArray[np.float32]
    model: str
    """Name of the model and the start of its weights' SHA-256."""

    def select(self, sha256s: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        """Return the positions in `sha256s` that have a vector, and these vectors."""
        row = {sha256: number for number, sha256 in enumerate(self.sha256s)}
        known = np.array([i for i, sha256 in enumerate(sha256s) if sha256 in row], dtype=np.intp)
        return known, self.vectors_ND[[row[sha256s[i]] for i in known]]


def write_embeddings(path: Path, embeddings: Embeddings) -> None:
    """Write columns sha256, vector (float16) and model, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    flat = pa.array(embeddings.vectors_ND.astype(np.float16).ravel())
    vectors = pa.FixedSizeListArray.from_arrays(flat, embeddings.vectors_ND.shape[1])
    sha256s = pa.array(embeddings.sha256s, pa.string())
    models = pa.array([embeddings.model] * len(embeddings.sha256s), pa.string())
    with atomic_file(path) as temporary:
        pq.write_table(pa.table({"sha256": sha256s, "vector": vectors, "model": models}), temporary)


def read_embeddings(path: Path) -> Embeddings:
    """Read a table of embeddings. Raises UserError when it is absent, or of several models."""
    import pyarrow as pa

    if not path.is_file():
        raise UserError(f"the embeddings file {path} does not exist; {_ADVICE}.")
    try:
        table = read_parquet(path, ["sha256", "vector", "model"])
        sha256s = tuple(str(sha256) for sha256 in table["sha256"].to_pylist())
        models = set(table["model"].to_pylist())
        flat = table["vector"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        vectors_ND = np.asarray(flat.reshape(len(table), -1), np.float32)
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a table of embeddings ({error}); {_ADVICE}.") from None
    if len(models) != 1:
        raise UserError(
            f"{path} has embeddings of {len(models)} different models, but all rows must be of "
            f"one model; {_ADVICE}."
        )
    length_N1 = np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    if not np.all(np.isfinite(length_N1) & (length_N1 > 0)):
        raise UserError(f"{path} has vectors that are all zero or have invalid values; {_ADVICE}.")
    return Embeddings(sha256s, vectors_ND / length_N1, str(models.pop()))


def label_table(dataset: Path) -> Path:
    """Return the table that the label review uses: of all layers where there is one."""
    features = dataset / LABEL_FEATURES
    return features if features.is_file() else dataset / EMBEDDINGS


# R = rows of the file, P = images of the dataset, D = dimensions

Singles = NDArray[np.float32]

NAMES = ("sha256", "file", "file_name", "path", "image")
"""Columns that name the image of a row; the first of them that is there counts."""
VECTORS = ("embedding", "vector")
MOST_DIMENSIONS = 65_536
_MOST_NUMBERS = 2**30
_MOST_BYTES = 2**36
_MOST_NAMES_BYTES = 256 * MEGABYTE
_BATCH = 1024


@dataclass(frozen=True)
class EmbeddingRows:
    """The embedding of each image of a dataset, in manifest order."""

    embeddings_PD: Singles
    number: Mapping[str, int]
    """Place of an image by its SHA-256."""
    unused: int
    """Rows of the file that are of no image of the dataset."""
    sha256: str
    """SHA-256 of the file."""

    @property
    def dimensions(self) -> int:
        return int(self.embeddings_PD.shape[1])

    def embedding(self, sha256: str) -> Singles:
        """Return an image's embedding. Raises UserError for an image that has none."""
        if sha256 not in self.number:
            raise UserError(
                f"the image {sha256[:16]}… has no embedding, because its file was changed after "
                "the build or belongs to another dataset; run `skindx build` again."
            )
        row_D: Singles = self.embeddings_PD[self.number[sha256]]
        return row_D


def read_embedding_rows(path: Path, names: Path | None, records: Sequence[Record]) -> EmbeddingRows:
    """Return the embeddings of a dataset's images; nothing is unpickled.

    `path` is .npy, R x D floating numbers with the names of its rows in `names` (.txt or .csv), or
    .parquet with a column of NAMES and one of VECTORS. Only what the dataset needs is in memory.
    Raises UserError for an image without a row or with two, and for anything else that is not so.
    """
    kinds: dict[str, type[_Npy] | type[_Parquet]] = {".npy": _Npy, ".parquet": _Parquet}
    kind = kinds.get(path.suffix.lower())
    if kind is None:
        raise UserError(
            f"{path} is neither a .npy nor a .parquet file; save the embeddings with numpy.save, "
            f"or as a Parquet table with the columns {NAMES[1]} and {VECTORS[0]}."
        )
    with open(open_plain(path, _MOST_BYTES), "rb"):  # noqa: PTH123 (a descriptor)
        pass
    file = kind(path, names)
    rows_P, unused = _join(file.names, records, path)
    embeddings_PD = np.empty((len(records), file.dimensions), np.float32)
    place = np.full(len(file.names), -1, np.int64)
    place[rows_P] = np.arange(len(records))
    with np.errstate(over="ignore"):  # what float32 does not hold is refused below
        for first, part_BD in file.parts():
            place_B = place[first : first + len(part_BD)]
            embeddings_PD[place_B[place_B >= 0]] = part_BD[place_B >= 0]
    finite_P = np.isfinite(embeddings_PD).all(axis=1)
    if not finite_P.all():
        first_bad = int(np.argmin(finite_P))
        raise UserError(
            f"{path} has invalid numbers (NaN, infinite or too large for float32) in "
            f"{counted(int((~finite_P).sum()), 'row')}, first in that of "
            f"{_shown(records[first_bad])}; compute the embeddings again."
        )
    number = {record.sha256: place for place, record in enumerate(records)}
    return EmbeddingRows(embeddings_PD, number, unused, sha256_file(path))


class _Npy:
    """An array in NumPy's format, mapped, and the names of its rows."""

    def __init__(self, path: Path, names: Path | None) -> None:
        if names is None:
            raise UserError(
                f"{path} does not name the image of each row; add --files NAMES.txt, which has "
                "one file name or SHA-256 on each line in the order of the rows."
            )
        try:
            self._rows_RD = np.lib.format.open_memmap(path, mode="r")
        except (OSError, SyntaxError, TokenError, *MALFORMED) as error:
            detail = " ".join(str(error).split())[:120]
            raise UserError(
                f"{path} is not a NumPy array of numbers ({detail}); save it with "
                "numpy.save(FILE, array.astype('float32'))."
            ) from None
        shape, dtype = self._rows_RD.shape, self._rows_RD.dtype
        _check_shape(path, shape[0] if shape else 0, shape[1:], dtype.kind == "f", str(dtype))
        self.dimensions = int(shape[1])
        self.names = _read_names(names)
        if len(self.names) != shape[0]:
            raise UserError(
                f"{path} has {shape[0]} rows, but {names} has {len(self.names)} names; write one "
                "name on each line, in the order of the rows."
            )

    def parts(self) -> Iterator[tuple[int, Singles]]:
        """Yield the first row's number and a batch of rows."""
        for first in range(0, len(self.names), _BATCH):
            yield first, self._rows_RD[first : first + _BATCH].astype(np.float32)


class _Parquet:
    """A table with a column of names and one of lists of numbers."""

    def __init__(self, path: Path, names: Path | None) -> None:
        if names is not None:
            raise UserError(f"{path} names its images itself; leave --files out.")
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._path = path
        try:
            with pq.ParquetFile(path) as file:
                facts, schema = file.metadata, file.schema_arrow
                name = next((name for name in NAMES if name in schema.names), None)
                self._vector = next((name for name in VECTORS if name in schema.names), None)
                if name is None or self._vector is None:
                    raise UserError(
                        f"{path} needs a column {' or '.join(NAMES)} and a column "
                        f"{' or '.join(VECTORS)}, but has the columns "
                        f"{', '.join(schema.names)[:200]}; rename its columns."
                    )
                kind = schema.field(self._vector).type
                listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
                listed = listed or pa.types.is_fixed_size_list(kind)
                numbers = listed and pa.types.is_floating(kind.value_type)
                # pyarrow aborts the process over the counts that a forged column declares.
                each = 0
                for batch in file.iter_batches(1, columns=[self._vector]) if numbers else ():
                    batch.validate(full=True)
                    each = len(batch.column(0)[0].values or ())
                    break
                _check_shape(path, facts.num_rows, (each,), numbers, str(kind))
                read = file.read([name])
                read.validate(full=True)
                column = read.column(0).cast(pa.string())
                self.names = [text or "" for text in column.to_pylist()]
        except UserError:
            raise
        except (pa.ArrowException, OSError, *MALFORMED) as error:
            raise self._unreadable(error) from None
        self.dimensions = each

    def parts(self) -> Iterator[tuple[int, Singles]]:
        """Yield the first row's number and a batch of rows."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        first = 0
        try:
            with pq.ParquetFile(self._path) as file:
                for batch in file.iter_batches(_BATCH, columns=[self._vector]):
                    batch.validate(full=True)
                    column = batch.column(0)
                    lengths = pc.list_value_length(column).fill_null(-1).to_numpy()
                    other_R = np.flatnonzero(lengths != self.dimensions)
                    if len(other_R):
                        row = int(other_R[0])
                        raise UserError(
                            f"in {self._path} the embedding of {self.names[first + row][:80]!r} "
                            f"has {max(0, int(lengths[row]))} numbers, but the first row has "
                            f"{self.dimensions}; compute all embeddings with one model."
                        )
                    flat = column.flatten().to_numpy(zero_copy_only=False)
                    yield first, flat.reshape(len(batch), self.dimensions).astype(np.float32)
                    first += len(batch)
        except UserError:
            raise
        except (pa.ArrowException, OSError, *MALFORMED) as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> UserError:
        detail = " ".join(str(error).split())[:120]
        return UserError(f"{self._path} is not a complete Parquet file ({detail}); write it again.")


def _check_shape(path: Path, rows: int, each: tuple[int, ...], numbers: bool, kind: str) -> None:
    if not numbers or len(each) != 1:
        raise UserError(
            f"{path} has values of type {kind} in {len(each) + 1} dimensions; save floating-point "
            "numbers with one row for each image."
        )
    if not 1 <= each[0] <= MOST_DIMENSIONS or rows * each[0] > _MOST_NUMBERS:
        raise UserError(
            f"{path} has {rows} rows of {each[0]} numbers, but the limits are {MOST_DIMENSIONS} "
            f"numbers in a row and {_MOST_NUMBERS} in the file; save smaller embeddings."
        )


def _read_names(path: Path) -> list[str]:
    """Return the names of rows in a text of one a line, or in a column of a CSV table."""
    text = read_plain(path, _MOST_NAMES_BYTES)
    if path.suffix.lower() == ".csv":
        log = TableLog()
        rows = list(read_table(path, NeededColumns(), None, log, every=True))
        column = next((name for name in NAMES if name in log.names), None)
        if column is None:
            raise UserError(
                f"{path} needs a column {' or '.join(NAMES)}, but has the columns "
                f"{', '.join(log.names)[:200]}; rename its column of names."
            )
        return [cell(row[column]) for row in rows]
    try:
        return [line.strip() for line in text.decode("utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise UserError(f"{path} is no text in UTF-8; write one file name a line.") from None


def _join(
    names: Sequence[str], records: Sequence[Record], path: Path
) -> tuple[NDArray[np.int64], int]:
    """Return the row of each image, and how many rows are of none.

    Names are compared whole (SHA-256, path in the dataset, address at the source), else by the
    file name, else by the file name without its ending: the first that finds all images counts.
    A file name that two images share finds neither.
    """
    best: dict[int, list[int]] = {}
    for part in (str, _base, _stem):
        images: dict[str, set[int]] = {}
        for place, record in enumerate(records):
            for key in {record.sha256, part(record.path), part(record.source_url)} - {""}:
                images.setdefault(key, set()).add(place)
        rows: dict[int, list[int]] = {}
        for row, name in enumerate(names):
            places = images.get(part(name), ())
            if len(places) == 1:
                rows.setdefault(next(iter(places)), []).append(row)
        if len(rows) > len(best):
            best = rows
        if len(best) == len(records):
            break
    twice = next((place for place, rows in best.items() if len(rows) > 1), None)
    if twice is not None:
        first, second = best[twice][:2]
        raise UserError(
            f"rows {first + 1} and {second + 1} of {path} are of the same image, "
            f"{_shown(records[twice])}; delete one of the rows."
        )
    missing = [record for place, record in enumerate(records) if place not in best]
    if missing:
        splits = Counter(record.split for record in missing)
        where = ", ".join(f"{count} in {split}" for split, count in splits.items())
        raise UserError(
            f"{path} has no row for {len(missing)} of the {len(records)} images of the dataset "
            f"({where}), such as {_shown(missing[0])}; add a row with the file name or SHA-256 of "
            "each image."
        )
    rows_P = np.array([best[place][0] for place in range(len(records))], np.int64)
    return rows_P, len(names) - len(records)


def _base(name: str) -> str:
    return PurePosixPath(name.replace("\\", "/").split("?")[0]).name


def _stem(name: str) -> str:
    return PurePosixPath(_base(name)).stem


def _shown(record: Record) -> str:
    return (_base(record.source_url) or record.path)[:80] + f" (SHA-256 {record.sha256[:12]}…)"
