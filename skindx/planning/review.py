"""Predictions beside measurements of past runs, and corrections learnt from them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev

from skindx.core.errors import UserError
from skindx.planning.cluster import Cluster, Correction
from skindx.planning.fragment import Predicted, PredictedMember

MOST = 5.0
"""A run that took longer by this factor was disturbed; nothing is learnt of it."""


@dataclass(frozen=True)
class Happened:
    """The record of a member's history."""

    name: str
    step_s: float
    """Median over the epochs, of the steps alone."""
    images_per_s: float
    wait_s: float
    """Of a step, waiting for images."""
    memory_bytes: float
    epochs: int


@dataclass(frozen=True)
class Compared:
    """One member, predicted and happened."""

    predicted: PredictedMember
    happened: Happened

    @property
    def error(self) -> float:
        """Of a step: happened over predicted, less one."""
        return self.happened.step_s / self.predicted.step_s - 1

    @property
    def within(self) -> bool:
        """True when the measurement lies in the 90 % interval."""
        width = 1 + self.predicted.half_width
        return (
            self.predicted.step_s / width <= self.happened.step_s <= self.predicted.step_s * width
        )

    def by_part(self) -> dict[str, tuple[float, float]]:
        """Return (predicted, happened) seconds of the parts that a history records separately."""
        read_s = self.predicted.parts.get("read", 0.0)
        return {
            "step": (self.predicted.step_s, self.happened.step_s),
            "waiting for images": (read_s, self.happened.wait_s),
            "computing and exchange": (
                self.predicted.step_s - read_s,
                self.happened.step_s - self.happened.wait_s,
            ),
        }


def compare(predicted: Predicted, happened: Sequence[Happened]) -> list[Compared]:
    """Pair members by name. Raises UserError where none has begun."""
    known = {member.name: member for member in predicted.members}
    pairs = [
        Compared(known[outcome.name], outcome) for outcome in happened if outcome.name in known
    ]
    if not pairs:
        raise UserError("no member of the plan has finished an epoch yet; nothing can be compared.")
    return pairs


def learnt(cluster: Cluster, pairs: Sequence[Compared]) -> Cluster:
    """Return the cluster with what the runs took over what was predicted.

    The factor of a step is put down to computing where a plan says that it is most of the step, and
    to communication otherwise. Earlier corrections are in the prediction: factors multiply, and
    weigh as many runs as they come from. Raises UserError for a run that was disturbed.
    """
    factors: dict[str, list[float]] = {}
    for pair in pairs:
        parts = pair.predicted.parts
        communicate = parts.get("communicate", 0.0)
        part = "communicate" if communicate > pair.predicted.step_s / 2 else "compute"
        share = communicate if part == "communicate" else pair.predicted.step_s - communicate
        over = pair.happened.step_s - pair.predicted.step_s
        factor = 1 + over / max(share, 1e-12)
        if not 1 / MOST <= factor <= MOST:
            raise UserError(
                f"member {pair.predicted.name} took {factor:.2g} times what was predicted of its "
                f"{part}; something else was at work there, so nothing is learnt from it."
            )
        factors.setdefault(part, []).append(factor)
    corrections = dict(cluster.corrections)
    for part, found in factors.items():
        before = corrections.get(part)
        runs = before.runs if before else 0
        own = math.exp(fmean(math.log(factor) for factor in found))
        # A new run says what is still missing; it weighs as one among all runs.
        factor = (before.factor if before else 1.0) * own ** (len(found) / (runs + len(found)))
        spread = pstdev(found) if len(found) > 1 else before.spread if before else 0.05
        corrections[part] = Correction(
            factor=factor, runs=runs + len(found), spread=min(10.0, spread)
        )
    return cluster.model_copy(update={"corrections": corrections})


def happened_of(
    name: str, rows: Sequence[dict[str, float]], images: int, batch: int
) -> Happened | None:
    """Return what a member's history records; None without an epoch."""
    if not rows:
        return None
    # The first epoch starts threads and compiles; it counts where there is no other.
    counted = rows[1:] or rows
    speed = median(float(row["pictures_per_s"]) for row in counted)
    if speed <= 0:
        return None
    steps = max(1, round(images / batch))
    step_s = images / steps / speed
    waited = median(float(row.get("wait_share", 0.0)) for row in counted)
    memory = max(float(row.get("memory_gb", 0.0)) for row in rows)
    return Happened(name, step_s, speed, waited * step_s, memory * 1e9, len(rows))
