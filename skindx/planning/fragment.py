"""plan.yaml: what `skindx train --plan` takes over its settings, and what was predicted."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field

from skindx import __version__
from skindx.core.atomic_files import write_text
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings, read_yaml
from skindx.planning.cluster import Nodes, PerNode
from skindx.planning.estimate import Estimate
from skindx.planning.plan import Plan
from skindx.planning.trace import MOST_S, Name

Predictable = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
"""Of many steps, whose times are bounded themselves."""

FORMAT: Literal[1] = 1
KEY = "plan"
"""Of the prediction in the file; all other keys are settings of a training."""

HEAD = "# Made by `skindx plan make`; `skindx train DATA --config CONFIG --plan` takes it.\n"


class PredictedMember(Settings):
    """One member."""

    name: Name
    step_s: float = Field(gt=0, le=MOST_S)
    half_width: float = Field(ge=0, le=1e6)
    """Of the 90 % interval, over the prediction."""
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


def _member(name: str, found: Estimate, epoch_s: float, seconds: float) -> PredictedMember:
    return PredictedMember(
        name=name,
        step_s=found.step_s,
        half_width=found.half_width,
        parts=found.step.parts,
        images_per_s=found.images_per_s,
        epoch_s=epoch_s,
        seconds=seconds,
        memory_bytes=found.memory.peak_bytes,
    )


def write_fragment(path: Path, plan: Plan) -> None:
    """Write the settings of the chosen plan, and what was predicted of it; atomically.

    Raises UserError for a strategy that this version does not execute.
    """
    strategy = plan.chosen.choice.strategy
    if not strategy.executed:
        raise UserError(
            f"{strategy.name} is priced and not executed by this version, so that nothing is "
            "written; leave --strategy out, or --write."
        )
    raw = {**plan.chosen.settings, KEY: Predicted.of(plan).model_dump(mode="json")}
    write_text(path, HEAD + yaml.safe_dump(raw, sort_keys=False))


def read_fragment(path: Path) -> tuple[dict[str, Any], Predicted]:
    """Return settings and prediction. Raises UserError for no plan, or one of another version."""
    raw = read_yaml(path)
    predicted = raw.pop(KEY, None)
    if not isinstance(predicted, dict):
        raise UserError(
            f"{path} is no plan (it has no key {KEY!r}); `skindx plan make --write` makes one."
        )
    if predicted.get("format") != FORMAT:
        raise UserError(
            f"{path} has format {predicted.get('format')!r}, and this version reads {FORMAT}; make "
            "the plan again."
        )
    found = Predicted.parse(predicted, origin=str(path), expand=False)
    if found.version != __version__:
        raise UserError(
            f"{path} was made by skindx {found.version}, and this is {__version__}; make the plan "
            "again with `skindx plan make`."
        )
    return raw, found


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
