"""How well a bundle's check for strange photos tells its own kind of photo from others.

`python -m skindx.studies.gates FOLDER ... --bundle BUNDLE DATA` prints it: the area under the ROC
curve of the score in `skindx.models.novelty`, pictures of the test split against photos of each
FOLDER, against the painted atlas, and against painted pictures of what is no skin; and the share
of each that the check refuses, alone and together with the gates before it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from skindx.data.manifest import read_manifest, split_of
from skindx.data.synthetic.painter import CLASSES, paint
from skindx.diagnosis.gates import inspect
from skindx.diagnosis.predictor import Predictor
from skindx.errors import UserError
from skindx.metrics import (
    Interval,
    Ranked,
    confidence_interval,
    share_interval,
)
from skindx.models.novelty import Novelty
from skindx.studies.evaluation import leave_out_seen
from skindx.studies.no_skin import KINDS
from skindx.studies.stored_picture import read_picture

PAINTED = 50
"""Pictures of each painted kind."""
_BATCH = 16

# N = pictures, D = dimensions of an embedding

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Checked:
    """What the check and the gates before it say of pictures of one kind."""

    kind: str
    scores_N: NDArray[np.float64]
    """Distance from all that the bundle learned from; it has no unit."""
    strange_N: NDArray[np.bool_]
    gated_N: NDArray[np.bool_]
    groups_N: NDArray[np.str_]

    @classmethod
    def of(
        cls, predictor: Predictor, kind: str, pictures: Sequence[Pixels], groups: Sequence[str] = ()
    ) -> Self:
        """Look at pictures; without `groups` each is one of its own."""
        novelty = novelty_of(predictor)
        looks = [
            predictor.ensemble.look(pictures[start : start + _BATCH]).embeddings_ND
            for start in range(0, len(pictures), _BATCH)
        ]
        embeddings_ND = np.concatenate(looks)
        return cls(
            kind,
            novelty.familiar.distances(embeddings_ND),
            np.array([novelty.is_far(each) for each in novelty.familiarity(embeddings_ND)]),
            np.array([any(found.fatal for _, found in inspect(each)) for each in pictures]),
            np.array(groups or [f"{kind} {n}" for n in range(len(pictures))]),
        )

    def refused(self) -> Interval:
        """Return the share that the check refuses; pictures of one group are no two witnesses."""
        return share_interval(self.strange_N, self.groups_N)

    def line(self, familiar: Self) -> str:
        """Return this kind's row of the table."""
        area = separation(familiar, self)
        both = (self.strange_N | self.gated_N).mean()
        return (
            f"{self.kind:24} {len(self.scores_N):5} {area.value:7.3f} "
            f"[{area.low:.3f}, {area.high:.3f}] {self.strange_N.mean():9.1%} {both:14.1%}"
        )


def novelty_of(predictor: Predictor) -> Novelty:
    """Return a bundle's check. Raises UserError for a bundle without one."""
    if predictor.novelty is None:
        raise UserError(
            f"{predictor.bundle.path} has no check for strange photos, which takes at least 19 "
            "calibration pictures; train it on a dataset that has them."
        )
    return predictor.novelty


def separation(familiar: Checked, strange: Checked) -> Interval:
    """Return the chance that a strange picture lies farther off than a familiar one (AUROC)."""
    scores_N = np.concatenate([familiar.scores_N, strange.scores_N])
    truth_N = np.repeat([0, 1], [len(familiar.scores_N), len(strange.scores_N)])
    ranked = Ranked.auroc(np.stack([-scores_N, scores_N], axis=1), truth_N)
    return confidence_interval(ranked, np.concatenate([familiar.groups_N, strange.groups_N]))


def familiar_pictures(predictor: Predictor, dataset: Path) -> Checked:
    """Look at the pictures of a dataset's test split that a bundle was not made from."""
    records = leave_out_seen(
        split_of(read_manifest(dataset), "test"), predictor.seen, "test", str(dataset)
    )
    pictures = [read_picture(dataset, record) for record in records]
    return Checked.of(predictor, "test pictures", pictures, [record.group for record in records])


def painted_pictures(count: int = PAINTED) -> Iterator[tuple[str, list[Pixels]]]:
    """Yield the painted kinds with `count` pictures of each."""
    yield "painted skin", [paint(CLASSES[n % len(CLASSES)], n).pixels for n in range(count)]
    for name, painter in KINDS.items():
        yield name, [painter(np.random.default_rng(seed)) for seed in range(count)]


def table(
    predictor: Predictor,
    dataset: Path,
    others: Sequence[tuple[str, Sequence[Pixels]]],
    painted: int = PAINTED,
) -> Iterator[str]:
    """Yield the lines of the table, `others` before what is painted."""
    familiar = familiar_pictures(predictor, dataset)
    refused, asked = familiar.refused(), novelty_of(predictor).spec.rate
    yield (
        f"{len(familiar.scores_N)} test pictures of {dataset}: {refused.value:.1%} refused as "
        f"strange [{refused.low:.1%}, {refused.high:.1%}]; at most {asked:.1%} is promised"
    )
    yield f"{'against':24} {'n':>5} {'AUROC':>7} {'95 %':14} {'strange':>9} {'or by a gate':>14}"
    for kind, pictures in (*others, *painted_pictures(painted)):
        yield Checked.of(predictor, kind, pictures).line(familiar)
