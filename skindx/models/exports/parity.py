"""Check that an export predicts as the network does, before it enters a bundle."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.manifest import Record
from skindx.metrics import share_interval
from skindx.models.ensemble.ensemble import Member, Memo
from skindx.models.ensemble.predicting import predict_members
from skindx.models.exports.spec import Parity, Precision

# N = images, C = classes

Floats = NDArray[np.float64]

LEAST_COSINE = 0.9999
LEAST_SHARE = 0.995
"""Of the images with the same first class, for what rounds coarser than fp32."""


def measure_parity(
    eager: Sequence[Member], exported: Sequence[Member], dataset: Path, records: Sequence[Record]
) -> list[Parity]:
    """Compare each member's answers to the images with those of its export.

    An export must answer batches, and images one by one as a page sends them.
    """
    logs_MNC = predict_members([*eager, *exported, *_alone(exported)], dataset, records)
    count = len(eager)
    groups = [record.group for record in records]
    return [
        compare(member.name, logs_MNC[at], logs_MNC[at + count :: count], groups)
        for at, member in enumerate(eager)
    ]


def parity_with(
    eager_NC: Floats, exported: Member, dataset: Path, records: Sequence[Record]
) -> Parity:
    """Return the same of one member whose eager log-probabilities are known."""
    others_2NC = predict_members([exported, *_alone([exported])], dataset, records)
    return compare(exported.name, eager_NC, others_2NC, [record.group for record in records])


def _alone(members: Sequence[Member]) -> list[Member]:
    return [_OneByOne(**vars(member)) for member in members]


class _OneByOne(Member):
    def log_probabilities(
        self, images: Sequence[NDArray[np.uint8]], batch: int = 1, memo: Memo | None = None
    ) -> Floats:
        return super().log_probabilities(images, batch, memo)


def compare(
    member: str,
    eager_NC: Floats,
    others: Iterable[Floats],
    groups: Sequence[str],
) -> Parity:
    """Return how far tables of log-probabilities agree: an image counts by its worst."""
    others = list(others)
    first_N = eager_NC.argmax(axis=1)
    same_N = np.all([first_N == other_NC.argmax(axis=1) for other_NC in others], axis=0)
    interval = share_interval(same_N, groups)
    return Parity(
        member=member,
        pictures=len(same_N),
        same=int(same_N.sum()),
        low=interval.low,
        high=interval.high,
        # An answer that is no number agrees with nothing.
        cosine=min(
            float(np.nan_to_num(_cosines(eager_NC, other_NC), nan=-1.0).min())
            for other_NC in others
        ),
    )


def good_enough(parity: Parity, precision: Precision) -> bool:
    """Return whether an export answers as its network does."""
    if precision == "fp32":
        return parity.same == parity.pictures and parity.cosine >= LEAST_COSINE
    return parity.share >= LEAST_SHARE


def refuse(parity: Parity, precision: Precision) -> None:
    """Raise UserError for an export that does not answer as its network does."""
    if precision == "fp32":
        asked = f"all of them and a cosine of at least {LEAST_COSINE}"
    else:
        asked = f"at least {LEAST_SHARE:.1%} of them"
    if not good_enough(parity, precision):
        raise UserError(
            f"the {precision} export of {parity.member} is refused: it puts the same class first "
            f"in {parity.same} of {parity.pictures} validation images ({parity.share:.1%}, "
            f"95 % interval {parity.low:.1%} to {parity.high:.1%}) at a cosine of "
            f"{parity.cosine:.6f}, and {asked} are asked for; the bundle is as it was, try "
            f"another --precision or --to."
        )


def _cosines(one_NC: Floats, other_NC: Floats) -> Floats:
    """Return cosines of logits around their mean, which log-probabilities give back exactly."""
    one_NC = one_NC - one_NC.mean(axis=1, keepdims=True)
    other_NC = other_NC - other_NC.mean(axis=1, keepdims=True)
    lengths_N = np.linalg.norm(one_NC, axis=1) * np.linalg.norm(other_NC, axis=1)
    # A network that gives all classes the same probability has no direction: compare for equality.
    still_N = (one_NC == other_NC).all(axis=1)
    products_N = (one_NC * other_NC).sum(axis=1)
    cosines_N: Floats = np.where(still_N, 1.0, products_N / np.maximum(lengths_N, 1e-300))
    return cosines_N
