"""Families: what verified copies join, their chains, and where persons contradict them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from skindx.data.copies.records import CopyRecord, Pair, verdict
from skindx.data.dedup.clusters import connected


@dataclass(frozen=True, slots=True)
class Family:
    """Images that links of verdict *same* join."""

    sha256s: tuple[str, ...]
    weakest: CopyRecord | None
    """The link of the least probability among those that hold the family together: those of its
    maximum spanning tree. None where only persons' answers do."""
    chained: int
    """Pairs of its images without a link of their own: 0 where everyone is a copy of everyone."""
    contradicted: tuple[Pair, ...]
    """Pairs that a person called different, and which others still join."""


def families(rows: Sequence[CopyRecord], answers: dict[Pair, bool] | None = None) -> list[Family]:
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
    found = [
        Family(
            tuple(members),
            _weakest(joined[part], links, answers),
            len(members) * (len(members) - 1) // 2 - len(joined[part]),
            tuple(sorted(different[part])),
        )
        for part, members in parts.items()
    ]
    return sorted(found, key=lambda family: (-len(family.sha256s), family.sha256s))


def copies_of(
    rows: Sequence[CopyRecord], sha256s: Iterable[str], answers: dict[Pair, bool] | None = None
) -> tuple[set[str], list[CopyRecord]]:
    """Return the other images of the families of these, and the uncertain links of all of them.

    A removal takes the first along and shows the second to a person.
    """
    answers, taken = answers or {}, set(sha256s)
    for family in families(rows, answers):
        if not taken.isdisjoint(family.sha256s):
            taken.update(family.sha256s)
    doubtful = [row for row in rows if verdict(row, answers) == "uncertain"]
    touching = [row for row in doubtful if not taken.isdisjoint(row.pair)]
    return taken - set(sha256s), touching


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
