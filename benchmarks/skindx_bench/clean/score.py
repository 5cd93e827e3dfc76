"""Scores of an answer against the truth: pairs by kind, false links, divided families."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from skindx.data.copies.hash_links import connected
from skindx.data.splits.split import SplitSettings, split_groups
from skindx.metrics import Interval, share_interval
from skindx_bench.clean.answer import Answer
from skindx_bench.clean.plants import LAID, Planted
from skindx_bench.clean.ranking import Ranking

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
    def pairs(self) -> Ranking:
        """The ranked pairs; what is resampled are the roots."""
        images_R = np.bincount(self._dense)
        return Ranking(
            self.answer.score_P,
            self.same,
            self._dense[self.answer.pairs_P2],
            images_R * (images_R - 1) // 2,
        )

    @cached_property
    def off_topic(self) -> Ranking:
        """The ranked images; what is resampled are images."""
        order = np.argsort(-self.answer.strangeness_S, kind="stable")
        ranked_S = self.answer.strange_S[order]
        off_topic_N = np.zeros(len(self.planted.names), np.int64)
        off_topic_N[self.planted.where("off_topic")] = 1
        return Ranking(
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
