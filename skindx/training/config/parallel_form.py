"""How the ranks of one training share out its network, by `engine.parallel.kind`.

One file a form holds its settings, their help (the docstrings) and its price for plans; it imports
no torch. A form of another distribution imports its base from here, and no union of all forms.
"""

from typing import Any, ClassVar, Literal

from skindx.core.cost.pricing import Strategy
from skindx.core.kinds import LAB, METHODS, Family
from skindx.core.removed_names import removed_kinds
from skindx.core.settings_base import Settings


class ParallelSettings(Settings):
    """Parallel form: the part of the network that each rank holds; kinds have own settings."""

    kind: str

    splits: ClassVar[bool] = True
    """Whether ranks hold parts of layers, or only some of the layers."""
    price: ClassVar[type[Strategy] | None] = None
    """What a plan compares it by; none: it has no price."""
    changes_network: ClassVar[str] = ""
    """"module:function", called as the registry's `change_network` is; none: nothing changes it."""

    def check_ranks(self, ranks: int) -> None:
        """Raise UserError for so many ranks, where it needs others."""

    def check_engine(self, engine: Any) -> None:
        """Raise ValueError for EngineSettings that do not go with it."""
        if not self.splits:
            return
        what = f"parallel.kind={self.kind} splits layers over the ranks"
        if not engine.schedule_kind.together:
            raise ValueError(
                f"{what}, but schedule={engine.schedule} trains each member on one rank; set "
                "engine.schedule=data, or remove engine.parallel"
            )
        if engine.zero:
            raise ValueError(
                f"{what}, which does not work with ZeRO; set engine.zero=0, or remove "
                "engine.parallel"
            )
        if engine.precision == "fp16":
            raise ValueError(
                f"{what}, which does not work with the loss scale of fp16; set "
                "engine.precision=bf16, or remove engine.parallel"
            )
        if engine.compile:
            raise ValueError(
                f"{what}, which does not work with compile; set engine.compile=false, or remove "
                "engine.parallel"
            )

    def check_member(self, member: str, recipe: Any) -> None:
        """Raise ValueError for a member whose Recipe needs whole layers."""
        if self.splits and recipe.preconditioner:
            raise ValueError(
                f"member {member}: engine.parallel.kind={self.kind} splits layers over the ranks, "
                f"but preconditioner.kind={recipe.preconditioner.kind} needs whole layers; remove "
                "engine.parallel or recipe.preconditioner"
            )
        kind = recipe.optimizer_kind
        if self.splits and (kind.matrices or kind.layerwise):
            does = "multiplies" if kind.matrices else "goes by the norms of"
            raise ValueError(
                f"member {member}: engine.parallel.kind={self.kind} splits layers over the ranks, "
                f"but recipe.optimizer={recipe.optimizer} {does} whole layers; set "
                "recipe.optimizer to adamw or sgd, or remove engine.parallel"
            )


class DataSettings(ParallelSettings):
    """Every rank holds the whole network and works on its part of each batch."""

    kind: Literal["data"] = "data"

    splits: ClassVar[bool] = False


PARALLEL_FORMS = Family(
    "parallel form",
    "skindx.parallel_forms",
    {"data": "skindx.training.config.parallel_form:DataSettings"},
    gone=removed_kinds("train engine.parallel"),
    elsewhere={"owt": METHODS, "tensor3d": LAB},
)
