"""Answers of cleaning methods, each computed in a process of its own, and their scores.

Gröger et al. 2025 ("CleanPatrick: A Benchmark for Image Data Cleaning", arXiv 2505.11034) rank all
candidates and report average precision, AUROC, and precision and recall among the first k. Here a
method may rank a part of them; hits that it leaves out are never found.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies.hash_links import connected
from skindx.data.splits.split import SplitSettings, split_groups
from skindx.metrics import Interval, Ranked, share_interval
from skindx_bench.data.clean_plants import LAID, Planted

# P = pairs, S = images with a score

_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class NoAnswerError(Exception):
    """A method has no answer; the message says why in a few words."""


@dataclass(frozen=True)
class Answer:
    """Two ranked lists, and what they took.

    `pairs_P2` are positions first < second of the folder's images, sorted by falling `score_P`;
    `accepted_P` are those that the method itself calls copies. `strange_S` are positions, and
    `strangeness_S` their scores, greater for images that belong less; empty where a method does
    not look for such images.
    """

    pairs_P2: NDArray[np.int64]
    score_P: NDArray[np.float64]
    accepted_P: NDArray[np.bool_]
    strange_S: NDArray[np.int64]
    strangeness_S: NDArray[np.float64]
    wall_s: float
    cpu_s: float
    memory_mb: float
    """Largest resident size of its process, and of its largest child."""
    version: str


def ask(
    command: Sequence[str], names: Sequence[str], *, threads: int, timeout_s: float, listed: int
) -> Answer:
    """Run `command` with the path of its answer appended, and read that answer.

    It is given `threads` threads by the usual environment variables. The `listed` first pairs
    count, after those it accepts. Raises NoAnswerError.
    """
    with TemporaryDirectory(prefix="skindx-clean-") as work:
        file = Path(work) / "answer.json"
        wall_s, cpu_s = _run([*command, str(file)], threads, timeout_s)
        try:
            written = json.loads(file.read_text(encoding="utf-8"))
            return read_answer(written, names, listed, wall_s=wall_s, cpu_s=cpu_s)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NoAnswerError(f"its answer cannot be read ({error})") from None


def read_answer(
    written: Mapping[str, Any],
    names: Sequence[str],
    listed: int,
    *,
    wall_s: float = 0.0,
    cpu_s: float = 0.0,
) -> Answer:
    """Turn a written answer into arrays; names are file names. Raises KeyError for unknown ones.

    A pair that stands twice counts once, by its greatest score.
    """
    position = {Path(name).name: i for i, name in enumerate(names)}
    best: dict[tuple[int, int], tuple[float, bool]] = {}
    for first, second, score, accepted in written["pairs"]:
        i, j = sorted((position[first], position[second]))
        if i != j:
            before = best.get((i, j), (-np.inf, False))
            best[i, j] = max(before[0], float(score)), before[1] or bool(accepted)
    rows = sorted((-score, i, j, accepted) for (i, j), (score, accepted) in best.items())
    rows = [row for number, row in enumerate(rows) if number < listed or row[3]]
    strange = written.get("off_topic") or []
    return Answer(
        pairs_P2=np.array([row[1:3] for row in rows], np.int64).reshape(-1, 2),
        score_P=-np.array([row[0] for row in rows], np.float64),
        accepted_P=np.array([row[3] for row in rows], np.bool_),
        strange_S=np.array([position[name] for name, _ in strange], np.int64),
        strangeness_S=np.array([float(score) for _, score in strange], np.float64),
        wall_s=wall_s,
        cpu_s=cpu_s,
        memory_mb=float(written["memory_mb"]),
        version=str(written["version"]),
    )


def _run(command: Sequence[str], threads: int, timeout_s: float) -> tuple[float, float]:
    """Run a command to its end; return its wall and processor seconds."""
    environment = {**os.environ, **dict.fromkeys(_THREADS, str(threads))}
    before, start = _children_s(), time.perf_counter()
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            _, said = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise NoAnswerError(f"stopped after {timeout_s:g} s") from None
        finally:
            # What it started itself ends with it, also when this process is interrupted.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    wall_s, cpu_s = time.perf_counter() - start, _children_s() - before
    if process.returncode:
        lines = [line for line in said.splitlines() if line.strip()]
        reason = lines[-1].strip()[:200] if lines else f"ended with {process.returncode}"
        raise NoAnswerError(reason)
    return wall_s, cpu_s


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# R = ranked entries, U = units that are resampled, D = bootstrap draws


@dataclass(frozen=True)
class AnswerRanking:
    """Entries sorted by falling score.

    Entry r is evidence of the units `units_R2`: of two that it joins, or of one, twice the same.
    `hits_U` is how many hits a perfect list has of each unit.
    """

    score_R: NDArray[np.float64]
    hit_R: NDArray[np.bool_]
    units_R2: NDArray[np.int64]
    hits_U: NDArray[np.int64]

    def average_precision(self) -> Ranked:
        """Mean over all hits of the precision at their score; equal scores stand together.

        A draw of units weights an entry by its unit, or by the product of the two that it joins.
        """
        return Ranked(
            lambda weights_DU: np.array([self._precision(weights_U) for weights_U in weights_DU]),
            len(self.hits_U),
        )

    def _precision(self, weights_U: NDArray[np.float64]) -> float:
        total = float((weights_U * self.hits_U).sum())
        if total == 0:
            return float("nan")
        first_R, second_R = self.units_R2.T
        weight_R = np.where(
            first_R == second_R, weights_U[first_R], weights_U[first_R] * weights_U[second_R]
        )
        ends = _last_of_equals(self.score_R)
        hits_R = np.cumsum(np.where(self.hit_R, weight_R, 0))[ends]
        all_R = np.cumsum(weight_R)[ends]
        gained_R = np.diff(hits_R, prepend=0.0)
        precision_R = np.divide(hits_R, all_R, out=np.zeros_like(hits_R), where=all_R > 0)
        return float((gained_R * precision_R).sum() / total)

    def auroc(self, candidates: int) -> float:
        """Return the chance that a hit stands before another candidate; `candidates` are all.

        What is not ranked stands last, all at the same place. NaN without a hit or another.
        """
        hits, others = int(self.hits_U.sum()), candidates - int(self.hits_U.sum())
        if hits == 0 or others == 0:
            return float("nan")
        ends = _last_of_equals(self.score_R)
        found_R, false_R = np.cumsum(self.hit_R)[ends], np.cumsum(~self.hit_R)[ends]
        found_R, false_R = np.append(found_R, hits), np.append(false_R, others)
        before_R = np.append(0, false_R[:-1])
        beaten_R = others - (before_R + false_R) / 2
        return float((np.diff(found_R, prepend=0) * beaten_R).sum() / hits / others)

    def among_first(self, k: int) -> tuple[float, float]:
        """Return precision and recall of the first k entries; NaN without an entry or a hit."""
        found, hits = int(self.hit_R[:k].sum()), int(self.hits_U.sum())
        precision = found / min(k, len(self.hit_R)) if len(self.hit_R) else float("nan")
        return precision, found / hits if hits else float("nan")

    def before_false(self) -> NDArray[np.bool_]:
        """Return for each entry whether it is a hit that stands before every false one."""
        false = self.score_R[~self.hit_R]
        first = false.max() if len(false) else -np.inf
        before_R: NDArray[np.bool_] = self.hit_R & (self.score_R > first)
        return before_R


def _last_of_equals(score_R: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the positions of the last entry of each score, in order."""
    return np.flatnonzero(np.append(score_R[1:] != score_R[:-1], True)[: len(score_R)])


# N = planted images, P = pairs, R = roots, C = copies of a kind

OFTEN = 100
"""Precision and recall are given among so many first entries."""


@dataclass(frozen=True)
class Scored:
    """One method's answer beside the truth."""

    planted: Planted
    answer: Answer
    seed: int

    @cached_property
    def same(self) -> NDArray[np.bool_]:
        """Ranked pairs that show the same thing."""
        first_P, second_P = self.planted.roots_N[self.answer.pairs_P2].T
        same_P: NDArray[np.bool_] = first_P == second_P
        return same_P

    @cached_property
    def pairs(self) -> AnswerRanking:
        """The ranked pairs; what is resampled are the roots."""
        images_R = np.bincount(self._dense)
        return AnswerRanking(
            self.answer.score_P,
            self.same,
            self._dense[self.answer.pairs_P2],
            images_R * (images_R - 1) // 2,
        )

    @cached_property
    def off_topic(self) -> AnswerRanking:
        """The ranked images; what is resampled are images."""
        order = np.argsort(-self.answer.strangeness_S, kind="stable")
        ranked_S = self.answer.strange_S[order]
        off_topic_N = np.zeros(len(self.planted.names), np.int64)
        off_topic_N[self.planted.where("off_topic")] = 1
        return AnswerRanking(
            self.answer.strangeness_S[order],
            off_topic_N[ranked_S] == 1,
            np.stack([ranked_S, ranked_S], axis=1),
            off_topic_N,
        )

    @cached_property
    def _dense(self) -> NDArray[np.int64]:
        return np.unique(self.planted.roots_N, return_inverse=True)[1].reshape(-1)

    def recall_at_no_false(self) -> Interval:
        """Share of the true pairs that stand before the first false one."""
        found_P2 = self.answer.pairs_P2[self.pairs.before_false()]
        all_U = self.pairs.hits_U
        found_U = np.bincount(self._dense[found_P2[:, 0]], minlength=len(all_U))
        hits = np.repeat(
            np.tile([1, 0], len(all_U)), np.stack([found_U, all_U - found_U], 1).ravel()
        )
        return share_interval(hits, np.repeat(np.arange(len(all_U)), all_U))

    def recall(self, kind: str) -> tuple[Interval, int]:
        """Share of a kind's copies that the method itself links with their original."""
        copies_C = self.planted.where("copy", kind)
        linked = set(map(tuple, self.answer.pairs_P2[self.answer.accepted_P].tolist()))
        hits_C = [
            tuple(sorted((int(copy), int(self._original[self.planted.roots_N[copy]])))) in linked
            for copy in copies_C
        ]
        return share_interval(hits_C, self.planted.roots_N[copies_C]), len(copies_C)

    def torn(self, kind: str) -> tuple[Interval, int]:
        """Share of a kind's copies that stand in another split than their original."""
        copies_C = self.planted.where("copy", kind)
        hits_C = [
            self._split[int(copy)] != self._split[self._original[self.planted.roots_N[copy]]]
            for copy in copies_C
        ]
        return share_interval(hits_C, self.planted.roots_N[copies_C]), len(copies_C)

    def false_links(self) -> tuple[Interval, int]:
        """Share of the links that the method itself makes which join different things."""
        accepted_P = self.answer.accepted_P
        roots = self.planted.roots_N[self.answer.pairs_P2[accepted_P, 0]]
        return share_interval(~self.same[accepted_P], roots), int(accepted_P.sum())

    def false_between(self) -> dict[str, int]:
        """Return how many false links join which two kinds of planted images."""
        kinds = [
            kind or part for kind, part in zip(self.planted.kinds, self.planted.parts, strict=True)
        ]
        wrong_P2 = self.answer.pairs_P2[self.answer.accepted_P & ~self.same].tolist()
        return dict(Counter(" and ".join(sorted((kinds[i], kinds[j]))) for i, j in wrong_P2))

    def misled(self) -> tuple[Interval, int]:
        """Share of the images under a shared overlay that are linked with another one under it.

        The two show different things: that a link joins them is the overlay's doing.
        """
        under = {
            int(at): self.planted.kinds[at]
            for part in ("overlay", "copy")
            for at in self.planted.where(part)
            if self.planted.kinds[at] in LAID
        }
        wrong_P2 = self.answer.pairs_P2[self.answer.accepted_P & ~self.same].tolist()
        misled = {
            image for i, j in wrong_P2 if under.get(i, "i") == under.get(j, "j") for image in (i, j)
        }
        hits = [image in misled for image in under]
        return share_interval(hits, self.planted.roots_N[list(under)]), len(under)

    @cached_property
    def _original(self) -> dict[int, int]:
        """Position of the base image of each root."""
        return {int(self.planted.roots_N[at]): int(at) for at in self.planted.where("base")}

    def largest_group(self) -> int:
        """Images of the largest group that the method's links make: false links chain families."""
        return int(np.bincount(self._component).max())

    @cached_property
    def _component(self) -> list[int]:
        links_P2 = self.answer.pairs_P2[self.answer.accepted_P]
        return connected(len(self.planted.names), links_P2)

    @cached_property
    def _split(self) -> dict[int, str]:
        """Split of each image, when the method's links make the groups."""
        kept = [i for i, part in enumerate(self.planted.parts) if part != "off_topic"]
        members = [(f"{self._component[i]:08d}", self.planted.labels[i]) for i in kept]
        splits = split_groups(members, SplitSettings(), self.seed)
        return {i: splits[group] for i, (group, _) in zip(kept, members, strict=True)}
