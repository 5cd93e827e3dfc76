"""What settings of a method tell the core: which code changes a training, and what goes with it.

A kind (parallel form, preconditioner, schedule of an ensemble, group of ranks) stands with its
settings, checks and arithmetic in its method's folder and imports no torch; its code is named as
"module:function" and loaded when a training uses it. What checks get (EngineSettings, Recipe,
ExchangeSettings and TrainSettings) stands above this module.
"""

from typing import Annotated, Any, ClassVar, Literal, Optional

from pydantic import BeforeValidator

from skindx.core.errors import UserError
from skindx.core.kinds import Family
from skindx.core.settings_base import Settings


class PreconditionerSettings(Settings):
    """What changes a gradient between its reduction and the optimizer."""

    kind: str

    builds: ClassVar[str]
    """Called as `build_preconditioner` is."""

    def check(self, member: str, engine: Any, trunk: str) -> None:
        """Raise ValueError for what cannot be preconditioned."""

    def fingerprint_fields(self) -> dict[str, Any]:
        """Return what decides the weights."""
        return self.model_dump(mode="json")


class MemberSchedule:
    """All ranks train one member after the other, each rank a part of every batch."""

    together = True
    """Whether all ranks train one member; otherwise each rank trains a member alone."""
    partitioned = False
    """Whether a member visits one partition of the training images after the other."""
    run_method = ""
    """The `RunMethod` that starts workers in place of ranks, as "module:Class"; empty: none."""

    def check_engine(self, engine: Any) -> None:
        """Raise ValueError for settings of the engine that do not go with this schedule."""

    def check_run(self, settings: Any) -> None:
        """Raise ValueError for a run that cannot be scheduled so."""


class RankGroupSettings(Settings):
    """How the ranks of a run come together, in place of one group that its first loss ends."""

    run_method: ClassVar[str]
    """The `RunMethod` that starts them and lets them train."""

    def check_engine(self, engine: Any) -> None:
        """Raise ValueError for settings of the engine that do not go with it."""

    def check_run(self, settings: Any) -> None:
        """Raise ValueError for a run that does not go with it."""


def settings_of(family: Family, kind: str) -> Any:
    """Return the type of a setting that is null, or has the settings of one kind of a family."""

    def loads(raw: Any) -> Any:
        try:
            if raw is not None:
                family.load(kind)
        except UserError as error:  # whose full stop the settings' own sentence brings
            raise UserError(str(error).removesuffix(".")) from None
        return raw

    settings: Any = family.loaded().get(kind, Any)
    return Annotated[Optional[settings], BeforeValidator(loads)]  # noqa: UP045 (Any | None is Any)


def name_in(family: Family) -> Any:
    """Return the type of a setting that is the name of one of a family's kinds."""

    def loads(name: Any) -> Any:
        try:
            if isinstance(name, str) and (name in family or name in family.missing):
                family.load(name)
        except UserError as error:  # whose full stop the settings' own sentence brings
            raise UserError(str(error).removesuffix(".")) from None
        return name

    names: Any = Literal[tuple(family.names)]
    return Annotated[names, BeforeValidator(loads)]
