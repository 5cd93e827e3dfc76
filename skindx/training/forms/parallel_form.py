"""Base of the forms in which ranks share out a network: settings of `engine.parallel`, and prices.

One file a form holds its settings, their help (the docstrings) and its price for plans; it imports
no torch.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.fused import FusedSettings
from skindx.core.cost.cells import Cell, chain_of
from skindx.core.cost.network import UNMEASURED, Network, Timed
from skindx.core.cost.placing import Ground
from skindx.core.cost.pricing import Load, Strategy
from skindx.core.cost.step import StepSchedule
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings


class ParallelForm(Strategy):
    """Layers are shared out over ranks, and not their images alone.

    All ranks are alike: each operator is data-parallel, or split over some of them.
    """

    parallel: ClassVar[bool] = True

    def fragment(self) -> dict[str, Any]:
        """Name the kind."""
        options = {key: value for key, value in self.options.items() if key != "wire"}
        wire = {"wire": self.options["wire"]} if "wire" in self.options else {}
        return {
            "exchange": {"kind": "fused", **wire},
            "engine": {"zero": 0, "parallel": {"kind": self.name, **options}},
        }

    @property
    def lossy(self) -> bool:  # type: ignore[override]
        """16 bits round the sums of gradients on their way."""
        return self.options.get("wire") == "bf16"

    def schedule(self, load: Load, network: Network) -> StepSchedule:
        """Return the cells of a step as a flow. Raises UserError where the network has none."""
        ground, cells = self._placed(load, network)
        half = self.lossy

        def summed(split: int, size_bytes: int) -> Timed:
            return ground.summed(split, size_bytes // 2 if half else size_bytes)

        per_byte = update_s_per_byte(load, cast=half)
        return StepSchedule(
            flow=chain_of(cells, summed, per_byte),
            spread=max(UNMEASURED, network.price("all_reduce").spread),
            local_spread=FusedSettings().local(load).spread,
            measured=False,
        )

    def _placed(self, load: Load, network: Network) -> tuple[Ground, Sequence[Cell]]:
        key = (self.label, network.nodes, network.per_node)
        if key not in load.memo:
            if network.ranks < 2:
                raise UserError(f"{self.name} shares layers out over ranks, and there is only one.")
            ground = Ground(load.profile, network, load.images, load.factor, load.pieces)
            load.memo[key] = (ground, self.cells(ground, update_s_per_byte(load)))
        result: tuple[Ground, Sequence[Cell]] = load.memo[key]
        return result

    @abstractmethod
    def cells(self, ground: Ground, update_s_per_byte: float) -> Sequence[Cell]:
        """Return the operators as they are placed. Raises UserError where none can be."""

    def more_bytes(self, ground: Ground, cells: Sequence[Cell]) -> float:
        """Return what a rank keeps for backward beside its own images' activations, an image."""
        return 0.0

    def memory_bytes(self, load: Load, network: Network, images: int) -> int:
        """Count activations of others' images, less the weights that other ranks hold."""
        ground, cells = self._placed(load, network)
        held = sum(cell.weight_bytes for cell in cells) / max(1, load.profile.parameter_bytes)
        return round(images * self.more_bytes(ground, cells) - not_held_bytes(load, held))


def update_s_per_byte(load: Load, *, cast: bool = False) -> float:
    """Return what a byte of weights takes: the update, and copies into the gradients' buffer.

    With `cast` its gradient is made 16 bits and back.
    """
    local_s = FusedSettings().local(load).base_s + (load.cast().base_s if cast else 0.0)
    return (load.trace.update_s + local_s) / max(1, load.profile.parameter_bytes)


def not_held_bytes(load: Load, held: float) -> float:
    """Return what a rank saves of weights, gradients and optimizer when it holds a part of them."""
    profile = load.profile
    return (1 - held) * (2 * profile.parameter_bytes + profile.optimizer_bytes)


class ParallelSettings(Settings):
    """Parallel form: the part of the network that each rank holds; kinds have own settings."""

    kind: str

    splits: ClassVar[bool] = True
    """Ranks hold parts of layers, or some of the layers."""
    in_groups: ClassVar[bool] = True
    """Ranks are groups that share every split layer, and other groups hold the same."""
    price: ClassVar[type[ParallelForm] | None] = None
    """What a plan compares it by; none: it has no price."""
    changes_network: ClassVar[str] = ""
    """"module:function", called as the registry's `change_network` is; none: nothing changes it."""

    def group_size(self, ranks: int) -> int:
        """Return how many of so many ranks share every split layer. Raises UserError."""
        return ranks

    @property
    def together(self) -> int:
        """Neighbouring ranks whose images meet in one batch norm."""
        return 1

    def check_engine(self, engine: Any) -> None:
        """Raise ValueError for EngineSettings that do not go with it."""
        if not self.splits:
            return
        what = f"parallel.kind={self.kind} splits layers over the ranks"
        if not engine.schedule_kind.together:
            raise ValueError(
                f"{what}, and schedule={engine.schedule} trains each member on one rank; set "
                "schedule=data, or leave parallel out"
            )
        if engine.zero:
            raise ValueError(
                f"{what}, which ZeRO would split once more; set zero=0, or leave parallel out"
            )
        if engine.precision == "fp16":
            raise ValueError(
                f"{what}, and the loss scale of fp16 is settled on whole gradients; set "
                "precision=bf16, or leave parallel out"
            )
        if engine.compile:
            raise ValueError(
                f"{what}, which talk to each other inside the network, and compile cannot look "
                "into that; set compile=false, or leave parallel out"
            )

    def check_member(self, member: str, recipe: Any) -> None:
        """Raise ValueError for a member whose Recipe needs whole layers."""
        if self.splits and recipe.preconditioner:
            raise ValueError(
                f"member {member}: engine.parallel.kind={self.kind} splits layers over the ranks, "
                f"and preconditioner.kind={recipe.preconditioner.kind} works on whole layers; "
                "leave one of them out"
            )
        kind = recipe.optimizer_kind
        if self.splits and (kind.matrices or kind.layerwise):
            does = "multiplies" if kind.matrices else "goes by the norms of"
            raise ValueError(
                f"member {member}: engine.parallel.kind={self.kind} splits layers over the ranks, "
                f"and recipe.optimizer={recipe.optimizer} {does} whole layers; take adamw or "
                "sgd, or leave parallel out"
            )

    def check_exchange(self, exchange: ExchangeSettings) -> None:
        """Raise ValueError for one that cannot act beside split layers."""
        if self.splits and exchange.apart:
            raise ValueError(
                f"exchange.kind={exchange.kind} lets ranks train apart, and engine.parallel.kind="
                f"{self.kind} splits layers over them; leave one of them out"
            )


class DataSettings(ParallelSettings):
    """Every rank holds the whole network and works on its part of each batch."""

    kind: Literal["data"] = "data"

    splits: ClassVar[bool] = False

    def group_size(self, ranks: int) -> int:
        """No layer is split."""
        return 1
