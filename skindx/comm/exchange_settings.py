"""Base of every kind of exchange: what its settings class says beside its settings.

One file a kind holds its settings, their help (the docstrings), its price for plans and the name of
its code. It imports no torch: plans and `--help` read it.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from skindx.comm.grouping import fixed_buckets
from skindx.core.cost.pricing import Load, Network, Price, StepSchedule, in_groups
from skindx.core.cost.profile import LocalWork, Profile
from skindx.core.settings_base import Settings


class ExchangeSettings(Settings):
    """How ranks agree on the mean of their gradients; each kind has settings of its own."""

    kind: str

    code: ClassVar[str] = ""
    """The exchange itself, as "module:Class"; empty: the engine reduces gradients by itself."""
    local_s_per_element: ClassVar[float] = 1e-9
    """Usual work of one core for an element of the gradient, where it was not measured."""
    local_as: ClassVar[str] = ""
    """Kind whose measured local work is used for this kind."""
    local_code: ClassVar[str] = ""
    """Function of the gradients that does this work without an exchange, as "module:function"."""
    collective: ClassVar[str] = ""
    """A collective of its own, as a cluster file names it; its code's `sum` is what is measured."""
    beside_parts: ClassVar[bool] = False
    """Whether plans use it for the unsplit part of networks whose layers are split over ranks."""
    searched: ClassVar[tuple[dict[str, Any], ...]] = ({},)
    """Settings that a plan tries."""
    also: ClassVar[Mapping[str, str]] = {}
    """Further strategies of plans: name -> the `rule` that `schedule` is given."""
    engine: ClassVar[Mapping[str, Any]] = {"zero": 0}
    """Settings of the engine that a plan writes beside it."""
    guard: ClassVar[str] = ""
    """Class that guards the steps of a training in place of `StepGuard`, as "module:Class"."""
    together: ClassVar[bool] = True
    """Whether all ranks take each step together, with the same weights."""
    shrinks: ClassVar[bool] = False
    """Whether it continues with fewer or more ranks in one process, also after a broken step."""
    needs: ClassVar[str] = ""
    """Requirements that `check_training` enforces, in a plan's words."""

    @property
    def by_engine(self) -> bool:
        """Tell whether the engine reduces gradients by itself."""
        return not self.code

    @property
    def lossy(self) -> bool:
        """Tell whether it changes the gradient, and so the training."""
        return False

    def check_training(self, *, whole_layers: bool, preconditioned: bool) -> None:
        """Raise ValueError where it does not go with a training.

        `whole_layers`: the network is compiled or trains in fp16; `preconditioned`: a second
        backward pass goes through it.
        """
        return

    def check_engine(self, engine: Any) -> None:
        """Raise ValueError for EngineSettings that do not go with it."""

    def check_ranks(self, ranks: int, per_host: int | None) -> None:
        """Raise UserError where it does not fit so many ranks, `per_host` of them, if known."""

    def check_epoch(self, name: str, steps: int) -> None:
        """Raise UserError where so many steps an epoch are too few for it; `name` takes them."""

    def schedule(self, load: Load, network: Network, rule: str = "") -> StepSchedule:
        """Return the communication of a step, as a plan prices it."""
        raise NotImplementedError

    def schedules(self, load: Load, network: Network, rule: str = "") -> list[StepSchedule]:
        """Return those that a training chooses from by timing; a plan takes the fastest."""
        return [self.schedule(load, network, rule)]

    def memory_bytes(self, load: Load, network: Network) -> int:
        """Return what it needs beside weights, gradients and optimizer."""
        return 0

    def saved_bytes(self, load: Load, network: Network) -> int:
        """Return what of it a rank's checkpoints hold."""
        return 0

    def differs(self, nodes: int, per_node: int, networks: Sequence[tuple[Profile, int]]) -> bool:
        """Tell whether it is anything else than a simpler kind on these ranks.

        `networks` are the members' profiles, each with the images of a rank in a step.
        """
        return nodes * per_node > 1

    def local(self, load: Load) -> LocalWork:
        """Return its work of the cores in a step."""
        return load.local(self.kind, self.local_s_per_element)

    @classmethod
    def timed(cls) -> Self | None:
        """Return the settings whose work of the cores is measured; None: it never is."""
        return None

    @classmethod
    def probed(cls, nodes: int, per_node: int) -> Self | None:
        """Return the settings whose collective is measured among these ranks; None: not there."""
        return None


class BucketedSettings(ExchangeSettings):
    """Base of exact kinds that sum buckets of a fixed size, one after the other beside backward."""

    local_as: ClassVar[str] = "fused"
    if TYPE_CHECKING:  # each kind has it, after the settings that it is known by
        bucket_mb: float

    def price(self, network: Network) -> Price:
        """Return what its collective takes."""
        raise NotImplementedError

    def schedule(self, load: Load, network: Network, rule: str = "") -> StepSchedule:
        """Send a bucket when it is complete and the one before is through."""
        if network.ranks == 1:
            return StepSchedule()
        price, local, sizes = self.price(network), self.local(load), load.trace.sizes_bytes
        return StepSchedule(
            in_groups(fixed_buckets(sizes, self.bucket_mb), sizes, price),
            serial=True,
            finish_s=local.base_s,
            spread=price.spread,
            local_spread=local.spread,
            measured=price.measured,
        )
