"""Copies of a dataset by SHA-256: the evidence for each pair, people's answers, and families.

`copies.parquet` holds the evidence. Families are what verified copies join.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import cast

import numpy as np

from skindx.core.errors import UserError
from skindx.data.answer_log import ReviewAnswer, read_answers_to
from skindx.data.copies.hash_links import connected
from skindx.data.copies.shards import sha256_of
from skindx.data.copies.verify import ACCEPT, REVIEW, Copy
from skindx.data.manifest import write_table

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
    """Write rows, atomically."""
    import pyarrow as pa

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
    write_table(file, rows, pa.schema(list(types.items())))


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
