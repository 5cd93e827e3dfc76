"""plan.yaml: what `skindx train --plan` takes over its settings, what was predicted; its review."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field

from skindx import __version__
from skindx.core.atomic_files import write_text
from skindx.core.cost.profile import MOST_S, Name
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings, read_yaml
from skindx_methods.plan.cluster import Cluster, Correction, Nodes, PerNode
from skindx_methods.plan.estimate import Estimate
from skindx_methods.plan.interval import half_width
from skindx_methods.plan.plan import Plan

Predictable = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
"""Figure of many steps; the times of single steps have limits of their own."""

FORMAT: Literal[1] = 1
KEY = "plan"
"""Key of the prediction in the file; all other keys are settings of a training."""

HEAD = "# Made by `skindx plan make`; `skindx train DATA --config CONFIG --plan` takes it.\n"


class PredictedMember(Settings):
    """One member."""

    name: Name
    step_s: float = Field(gt=0, le=MOST_S)
    half_width: float = Field(ge=0, le=1e6)
    """Half width of the 90 % interval, divided by the prediction."""
    parts: dict[Name, Predictable] = Field(max_length=64)
    images_per_s: Predictable
    epoch_s: Predictable
    seconds: Predictable
    memory_bytes: Predictable


class Predicted(Settings):
    """A prediction and its subject."""

    format: Literal[1] = FORMAT
    version: Name
    dataset: Name
    """Digest of the dataset's manifest; empty: of no dataset."""
    cluster: Name
    nodes: Nodes
    ranks_per_node: PerNode
    members: tuple[PredictedMember, ...] = Field(max_length=4096)
    seconds: Predictable

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return the prediction of the chosen plan."""
        chosen = plan.chosen
        return cls(
            version=__version__,
            dataset=plan.machine.profiles.dataset,
            cluster=plan.machine.cluster.name,
            nodes=chosen.choice.nodes,
            ranks_per_node=chosen.choice.ranks_per_node,
            members=tuple(
                _member(
                    member.name,
                    member.estimate,
                    member.epoch_s + member.validation_s,
                    member.seconds,
                )
                for member in chosen.members
            ),
            seconds=chosen.seconds,
        )


def _member(name: str, result: Estimate, epoch_s: float, seconds: float) -> PredictedMember:
    return PredictedMember(
        name=name,
        step_s=result.step_s,
        half_width=half_width(result),
        parts=result.step.parts,
        images_per_s=result.images_per_s,
        epoch_s=epoch_s,
        seconds=seconds,
        memory_bytes=result.memory.peak_bytes,
    )


def write_fragment(path: Path, plan: Plan) -> None:
    """Write the settings of the chosen plan, and what was predicted of it; atomically."""
    raw = {**plan.chosen.settings, KEY: Predicted.of(plan).model_dump(mode="json")}
    write_text(path, HEAD + yaml.safe_dump(raw, sort_keys=False))


def read_fragment(path: Path) -> tuple[dict[str, Any], Predicted]:
    """Return settings and prediction. Raises UserError for no plan, or one of another version."""
    raw = read_yaml(path)
    predicted = raw.pop(KEY, None)
    if not isinstance(predicted, dict):
        raise UserError(
            f"{path} is not a plan, because the key {KEY!r} is missing; make a plan with `skindx "
            "plan make --write`."
        )
    if predicted.get("format") != FORMAT:
        raise UserError(
            f"{path} has format {predicted.get('format')!r}, but this version reads {FORMAT}; "
            "make the plan again with `skindx plan make`."
        )
    result = Predicted.parse(predicted, origin=str(path), expand=False)
    if result.version != __version__:
        raise UserError(
            f"{path} was made by skindx {result.version}, but this is skindx {__version__}; make "
            "the plan again with `skindx plan make`."
        )
    return raw, result


def merged(settings: dict[str, Any], fragment: dict[str, Any]) -> dict[str, Any]:
    """Return plain settings with those of a plan in their place; a kind replaces its whole part.

    What a plan says of pieces holds for members with recipes of their own too.
    """
    result = dict(settings)
    for key, value in fragment.items():
        if isinstance(value, dict) and "kind" not in value and isinstance(result.get(key), dict):
            result[key] = {**result[key], **value}
        else:
            result[key] = value
    pieces = fragment.get("recipe", {})
    if pieces and isinstance(result.get("members"), list):
        result["members"] = [
            {**member, "recipe": {**member["recipe"], **pieces}}
            if isinstance(member, dict) and isinstance(member.get("recipe"), dict)
            else member
            for member in result["members"]
        ]
    return result


MOST = 5.0
"""Ratio to the prediction above which a run was disturbed, and nothing is learnt from it."""


@dataclass(frozen=True)
class Happened:
    """The record of a member's history."""

    name: str
    step_s: float
    """Median over the epochs of a step's time, without what surrounds the steps."""
    images_per_s: float
    wait_s: float
    """Seconds of a step in which it waits for images."""
    memory_bytes: float
    epochs: int


@dataclass(frozen=True)
class Compared:
    """One member, predicted and happened."""

    predicted: PredictedMember
    happened: Happened

    @property
    def error(self) -> float:
        """Relative error of a step's time: measured over predicted, minus 1."""
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
        raise UserError(
            "no member of the plan has finished an epoch, so nothing can be compared; wait for "
            "the first epoch of a member."
        )
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
                f"the {part} of member {pair.predicted.name} took {factor:.2g} times the "
                "predicted time, so other programs were probably running and the correction "
                "would be wrong; train this member again on an idle machine."
            )
        factors.setdefault(part, []).append(factor)
    corrections = dict(cluster.corrections)
    for part, result in factors.items():
        before = corrections.get(part)
        runs = before.runs if before else 0
        mean_factor = math.exp(fmean(math.log(factor) for factor in result))
        # A new run says what is still missing; it weighs as one among all runs.
        factor = (before.factor if before else 1.0) * mean_factor ** (
            len(result) / (runs + len(result))
        )
        spread = pstdev(result) if len(result) > 1 else before.spread if before else 0.05
        corrections[part] = Correction(
            factor=factor, runs=runs + len(result), spread=min(10.0, spread)
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
