"""The arms of a convergence study: trainings that differ in what each one changes, and no more."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.training.config.ensemble import EnsembleSettings
from skindx.training.config.run import TrainSettings

ArmName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")]


class Study(Settings):
    """`training` holds what all arms share, `arms` by name what each of them has instead."""

    training: dict[str, Any]
    """A training run of one member, as in `skindx train --config`."""
    arms: dict[ArmName, dict[str, Any]] = Field(min_length=2)
    compare: tuple[tuple[ArmName, ArmName], ...] = ()
    """Pairs of an arm and its baseline; none: every arm with the first one."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        for pair in self.compare:
            for name in pair:
                if name not in self.arms:
                    raise ValueError(
                        f"compare names {name!r}, but the arms are {', '.join(self.arms)}"
                    )
            if pair[0] == pair[1]:
                raise ValueError(f"compare sets {pair[0]!r} against itself; name two arms")
        return self

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Each arm that is compared, and its baseline."""
        first, *others = self.arms
        return self.compare or tuple((arm, first) for arm in others)


def member_name(seed: int) -> str:
    """Return the name of an arm's member with this seed."""
    return f"seed-{seed}"


def arm_settings(study: Study, seeds: Sequence[int], origin: str) -> dict[str, TrainSettings]:
    """Return the training of each arm: one member a seed, in one run. Raises UserError."""
    made = {}
    for name, changes in study.arms.items():
        where = f"{origin}, arm {name}"
        settings = TrainSettings.parse(overlay(study.training, changes), where)
        more = settings.reused or settings.soups or settings.detector or settings.distil
        if len(settings.members) != 1 or settings.members[0].fold is not None or more:
            raise UserError(
                f"{where}: an arm trains one member on the folds of the study; give `members` one "
                "entry without a fold, and no reused, soups, detector or distil."
            )
        (member,) = settings.members
        members = tuple(
            member.model_copy(update={"name": member_name(seed), "seed": seed}) for seed in seeds
        )
        # Seeds stand side by side: an ensemble that drops or weighs members would hide some.
        change = {"name": name, "members": members, "ensemble": EnsembleSettings()}
        made[name] = settings.model_copy(update=change)
    return made


def overlay(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes` in it, mapping by mapping.

    Anything else replaces what was there, and so does a mapping of another `kind`.
    """
    merged = dict(base)
    for key, change in changes.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(change, Mapping) and _one_kind(old, change):
            merged[key] = overlay(old, change)
        else:
            merged[key] = change
    return merged


def _one_kind(old: Mapping[str, Any], change: Mapping[str, Any]) -> bool:
    return "kind" not in change or old.get("kind") == change["kind"]
