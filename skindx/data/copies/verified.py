"""The evidence of verified pairs on disk, by both SHA-256: a pair is verified once.

What a pair shows depends on its two images alone, so a rebuild reads it, that of a refused pair
too, and verifies only the pairs that no search of the dataset folder has verified. A search leaves
a file for each finished part; `keep_pairs` makes one file of them.
"""

import hashlib
import itertools
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file
from skindx.core.errors import UserError
from skindx.data.answer_log import ReviewAnswer, read_answers_to
from skindx.data.copies import verify
from skindx.data.copies.describe import (
    DescriptionShard,
    folder_of,
    sha256_of,
    shard_files,
    write_shard,
)
from skindx.data.copies.hash_links import connected
from skindx.data.copies.verify import ACCEPT, REVIEW, VERSION, Copy
from skindx.data.layout import stored_files
from skindx.data.manifest import write_table
from skindx.data.typed_rows import Int32, rows_of

if TYPE_CHECKING:
    import pyarrow as pa


# P = pairs, V = values of a pair


VALUES = (
    "probability",
    "inliers",
    "ncc",
    "covered",
    "mirrored",
    *(f"transform_{place}" for place in range(6)),
)
"""Columns of a pair, as `Copy` names them; a pair without agreeing points has zeros."""
_SIDES = ("sha256_a", "sha256_b")
_BATCH = 1 << 16
"""Pairs that are read at once."""


def verified_folder(dataset: Path) -> Path:
    """Return where the evidence lies: in a folder named by all that decides it but the images."""
    decides = verify.ACCEPTANCE_FILE.read_bytes() + repr(sorted(verify.RANGES.items())).encode()
    name = f"pairs-v{VERSION}-{hashlib.sha256(decides).hexdigest()[:12]}"
    return folder_of(dataset.absolute()) / name


def verified_files(dataset: Path) -> list[Path]:
    """Return the files with evidence, in the order of their names."""
    return sorted(verified_folder(dataset).glob("*.parquet"))


def values_of(copy: Copy | None) -> tuple[float, ...]:
    """Return the values of a verified pair, in the order of VALUES."""
    if copy is None:
        return (0.0,) * len(VALUES)
    shown = (copy.probability, copy.inliers, copy.ncc, copy.covered, copy.mirrored)
    return (*shown, *copy.transform_23)


def write_verified(
    file: Path, pairs: Sequence[tuple[str, str]], values_PV: NDArray[np.float64]
) -> None:
    """Write the values of pairs, the smaller SHA-256 first, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        name: pa.array([pair[side] for pair in pairs], pa.string())
        for side, name in enumerate(_SIDES)
    }
    columns |= {name: pa.array(values_PV[:, at]) for at, name in enumerate(VALUES)}
    with atomic_file(file) as temporary:
        pq.write_table(pa.table(columns), temporary, compression="zstd")


def read_verified(
    files: Iterable[Path], sha256s: Sequence[str], wanted_P2: NDArray[np.int64], least: float
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return which of the wanted pairs the files know, and rows (first, second, *VALUES).

    Pairs are positions first < second in `sha256s`; both are sorted. The rows are those of at
    least this probability, sorted.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(sha256s)
    wanted_P = wanted_P2[:, 0] * count + wanted_P2[:, 1]
    known_P, names = np.zeros(len(wanted_P), bool), pa.array(sha256s, pa.string())
    rows = [np.empty((0, 2 + len(VALUES)))]
    for table in _tables(files if len(wanted_P) else ()):
        at_P2 = np.stack(
            [
                pc.fill_null(pc.index_in(table[name], value_set=names), -1).to_numpy()
                for name in _SIDES
            ],
            axis=1,
        ).astype(np.int64)
        key_P = np.where((at_P2 >= 0).all(axis=1), at_P2[:, 0] * count + at_P2[:, 1], -1)
        place_P = np.searchsorted(wanted_P, key_P).clip(max=len(wanted_P) - 1)
        requested_P = wanted_P[place_P] == key_P
        known_P[place_P[requested_P]] = True
        sure_P = requested_P & (table["probability"].to_numpy() >= least)
        values = [table[name].to_numpy()[sure_P] for name in VALUES]
        rows.append(np.column_stack([at_P2[sure_P], *values]).reshape(-1, 2 + len(VALUES)))
    # A kill between writing one file of all and deleting its parts leaves pairs twice.
    return known_P, np.unique(np.concatenate(rows), axis=0)


def keep_pairs(dataset: Path, sha256s: Collection[str]) -> None:
    """Make one file of the evidence of pairs of these images, and delete all other evidence."""
    import pyarrow as pa

    folder, wanted = verified_folder(dataset), pa.array(sorted(sha256s), pa.string())
    for other in folder.parent.glob("pairs-*"):
        if other != folder:
            shutil.rmtree(other)
    files = verified_files(dataset)
    gone = any(len(_between(table, wanted)) < len(table) for table in _tables(files))
    if len(files) < 2 and not gone:
        return
    what = "\n".join([*(file.name for file in files), *sorted(sha256s)])
    target = folder / f"kept-{hashlib.sha256(what.encode()).hexdigest()[:32]}.parquet"
    with atomic_file(target) as temporary:
        _write_all(temporary, (_between(table, wanted) for table in _tables(files)))
    for file in files:
        file.unlink()


def _between(table: "pa.Table", names: "pa.StringArray") -> "pa.Table":
    """Return the rows whose images are both among these."""
    import pyarrow.compute as pc

    for side in _SIDES:
        table = table.filter(pc.is_in(table[side], value_set=names))
    return table


def _write_all(file: Path, tables: Iterable["pa.Table"]) -> None:
    import pyarrow.parquet as pq

    every = iter(tables)
    first = next(every)  # never empty: no evidence, no file
    with pq.ParquetWriter(file, first.schema, compression="zstd") as writer:
        for table in itertools.chain([first], every):
            writer.write_table(table)


def _tables(files: Iterable[Path]) -> Iterator["pa.Table"]:
    """Yield what the files hold, some _BATCH rows at a time, however small or large they are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    waiting: list[pa.RecordBatch] = []
    for file in files:
        with pq.ParquetFile(file) as opened:
            for batch in opened.iter_batches(_BATCH):
                waiting.append(batch)
                if sum(map(len, waiting)) >= _BATCH:
                    yield pa.Table.from_batches(waiting)
                    waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def keep_stored(dataset: Path) -> None:
    """Delete what is known of images whose bytes the store no longer has. See `keep_only`."""
    keep_only(dataset, {sha256_of(file.name) for file in stored_files(dataset)})


def keep_only(dataset: Path, sha256s: Collection[str]) -> None:
    """Delete the descriptions and the evidence of all other images, and those of other versions.

    For who holds `only_writer`: after a removal nothing may be left that shows a removed image.
    """
    folder, wanted = folder_of(dataset.absolute()), set(sha256s)
    for other in folder.parent.glob("*"):
        if other != folder and other.is_dir():
            shutil.rmtree(other)
    keep_pairs(dataset, wanted)
    for file in shard_files(folder):
        shard = DescriptionShard(file)
        kept = [at for at, sha256 in enumerate(shard.sha256s) if sha256 in wanted]
        if len(kept) == len(shard.sha256s):
            continue
        if kept:
            rows = shard.rows()
            write_shard(folder, [shard.sha256s[at] for at in kept], [rows[at] for at in kept])
        file.unlink()


Pair = tuple[str, str]
"""Two SHA-256, the smaller one first."""


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """One row; `Copy` says what the columns mean. sha256_a < sha256_b."""

    sha256_a: str
    sha256_b: str
    probability: float
    inliers: Int32
    ncc: float
    covered: float
    mirrored: bool
    transform: tuple[float, ...]
    """Map of the pixels of a to those of b."""

    @property
    def pair(self) -> Pair:
        return self.sha256_a, self.sha256_b


def records_of(copies: Iterable[Copy], paths: Sequence[str]) -> list[CopyRecord]:
    """Return rows for what `find_copies` found among `paths`, sorted."""
    rows = []
    for given in copies:
        names = sha256_of(paths[given.first]), sha256_of(paths[given.second])
        copy = given if names[0] < names[1] else given.turned()
        first, second = sorted(names)
        shown = (copy.probability, copy.inliers, copy.ncc, copy.covered, copy.mirrored)
        rows.append(CopyRecord(first, second, *shown, copy.transform_23))
    return sorted(rows, key=lambda row: row.pair)


def write_copies(file: Path, rows: Sequence[CopyRecord]) -> None:
    write_table(file, rows, CopyRecord)


def read_copies(file: Path) -> list[CopyRecord]:
    """Read rows. Raises UserError for a file that is no table of copies."""
    import pyarrow as pa

    try:
        rows = rows_of(file, CopyRecord)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(
            f"the table of copies {file} is damaged ({error}); delete it and run `skindx build` "
            "again."
        ) from None
    return [CopyRecord(**row) for row in rows]


def verdict(row: CopyRecord, answers: dict[Pair, bool]) -> str:
    """Return same, uncertain or different; a person's answer goes before the probability."""
    answer = answers.get(row.pair)
    if answer is not None:
        return "same" if answer else "different"
    if row.probability >= ACCEPT:
        return "same"
    return "uncertain" if row.probability >= REVIEW else "different"


def read_answers(dataset: Path) -> dict[Pair, ReviewAnswer]:
    """Read what people say of pairs; the last row of a pair counts. Raises UserError."""
    return cast(dict[Pair, ReviewAnswer], read_answers_to(dataset, "copy"))


def answered_same(answers: Mapping[Pair, ReviewAnswer]) -> dict[Pair, bool]:
    """Return for each pair whether a person called it the same."""
    return {pair: answer.verdict == "same" for pair, answer in answers.items()}


@dataclass(frozen=True, slots=True)
class CopyFamily:
    """Images that links of verdict *same* join."""

    sha256s: tuple[str, ...]
    weakest: CopyRecord | None
    """The link of the least probability among those that hold the family together: those of its
    maximum spanning tree. None where only persons' answers do."""
    chained: int
    """Pairs of its images without a link of their own: 0 where everyone is a copy of everyone."""
    contradicted: tuple[Pair, ...]
    """Pairs that a person called different, and which others still join."""


def families(
    rows: Sequence[CopyRecord], answers: dict[Pair, bool] | None = None
) -> list[CopyFamily]:
    """Return the families of two images and more, the largest first.

    `answers` says for pairs (smaller SHA-256 first) whether a person called them the same: they go
    before the evidence, also for pairs without any.
    """
    answers = answers or {}
    links = {row.pair: row for row in rows if verdict(row, answers) == "same"}
    answered = [pair for pair, same in answers.items() if same]
    pairs = sorted({*links, *answered})
    names = sorted({name for pair in pairs for name in pair})
    number = {name: at for at, name in enumerate(names)}
    at_L2 = np.array([(number[a], number[b]) for a, b in pairs], np.int64).reshape(-1, 2)
    parts: dict[int, list[str]] = defaultdict(list)
    component = connected(len(names), at_L2) if names else []
    for name, part in zip(names, component, strict=True):
        parts[part].append(name)
    joined: dict[int, list[Pair]] = defaultdict(list)
    for pair in pairs:
        joined[component[number[pair[0]]]].append(pair)
    different: dict[int, list[Pair]] = defaultdict(list)
    for pair, same in answers.items():
        inside = not same and pair[0] in number and pair[1] in number
        if inside and component[number[pair[0]]] == component[number[pair[1]]]:
            different[component[number[pair[0]]]].append(pair)
    joined_families = [
        CopyFamily(
            tuple(members),
            _weakest(joined[part], links, answers),
            len(members) * (len(members) - 1) // 2 - len(joined[part]),
            tuple(sorted(different[part])),
        )
        for part, members in parts.items()
    ]
    return sorted(joined_families, key=lambda family: (-len(family.sha256s), family.sha256s))


def labels_apart(families: Iterable[CopyFamily], labels: Mapping[str, str]) -> dict[str, str]:
    """Return each image of a family of several labels, and why a person should look at its own.

    `labels` has those of the images that are kept, by SHA-256.
    """
    apart = {}
    for family in families:
        kept = [sha256 for sha256 in family.sha256s if sha256 in labels]
        for sha256 in kept:
            other = next((one for one in kept if labels[one] != labels[sha256]), None)
            if other:
                apart[sha256] = f"its copy {other[:12]} is called {labels[other]}"
    return apart


def _weakest(
    pairs: Iterable[Pair], links: dict[Pair, CopyRecord], answers: dict[Pair, bool]
) -> CopyRecord | None:
    """Return the least probable link of the maximum spanning tree (Kruskal 1956)."""
    root: dict[str, str] = {}

    def find(name: str) -> str:
        while root.setdefault(name, name) != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    def strength(pair: Pair) -> float:
        return 2.0 if answers.get(pair) else links[pair].probability

    weakest: CopyRecord | None = None
    for pair in sorted(pairs, key=lambda pair: (-strength(pair), pair)):
        a, b = find(pair[0]), find(pair[1])
        if a != b:
            root[a] = b
            if not answers.get(pair):
                weakest = links[pair]
    return weakest
