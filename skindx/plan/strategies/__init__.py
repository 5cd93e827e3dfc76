"""Ways of training by name, as `--strategy` takes them, and those that a search looks at."""

from collections.abc import Iterator, Mapping
from typing import Any

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.kinds import EXCHANGES
from skindx.core.cost.pricing import Load, Network, Schedule, Strategy
from skindx.core.errors import UserError
from skindx.plan.strategies.model import Model
from skindx.plan.strategies.operators import Operators
from skindx.plan.strategies.owt import Owt
from skindx.plan.strategies.tensor import Tensor
from skindx.plan.strategies.tensor3d import Tensor3d
from skindx.plan.strategies.zero import Zero1, Zero2, Zero3


class Exchanging(Strategy):
    """An exchange of whole gradients, as its settings price it."""

    def __init__(self, settings: ExchangeSettings, name: str = "") -> None:
        """`name`: one of the further strategies that the kind is known by."""
        self.settings = settings
        self.name = name or settings.kind  # type: ignore[misc]
        super().__init__(settings.model_dump(mode="json", exclude_defaults=True, exclude={"kind"}))

    @property
    def lossy(self) -> bool:  # type: ignore[override]
        """As its settings say."""
        return self.settings.lossy

    def schedule(self, load: Load, network: Network) -> Schedule:
        """Ask the kind."""
        return self.settings.schedule(load, network, self.settings.also.get(self.name, ""))

    def fragment(self) -> dict[str, Any]:
        """Name the kind, and what it asks of the engine."""
        exchange = {"kind": self.settings.kind, **self.options}
        return {"exchange": exchange, "engine": dict(self.settings.engine)}

    def memory_bytes(self, load: Load, network: Network, images: int) -> int:
        """Ask the kind."""
        return self.settings.memory_bytes(load, network)

    def refusal(self, *, whole_layers: bool, preconditioned: bool) -> str:
        """Return why it does not go with a training; empty where it does."""
        try:
            self.settings.check_training(whole_layers=whole_layers, preconditioned=preconditioned)
        except ValueError as error:
            return self.settings.needs or str(error)
        return ""


OTHERS: dict[str, type[Strategy]] = {
    strategy.name: strategy
    for strategy in (Zero1, Zero2, Zero3, Owt, Model, Tensor, Tensor3d, Operators)
}
"""Name -> strategy that is no exchange of whole gradients."""


def strategy_names() -> list[str]:
    """Return all names of strategies."""
    kinds = EXCHANGES.loaded()
    return [*(name for kind in kinds for name in (kind, *kinds[kind].also)), *OTHERS]


def strategy_of(name: str, options: Mapping[str, Any] | None = None) -> Strategy:
    """Return a strategy by its name. Raises UserError for one that there is not."""
    if name in OTHERS:
        return OTHERS[name](options)
    for kind, settings in EXCHANGES.loaded().items():
        if name == kind or name in settings.also:
            return Exchanging(settings.parse({**(options or {})}, f"strategy {name}"), name)
    raise UserError(f"there is no strategy {name!r}; valid: {', '.join(strategy_names())}.")


def searched(*, parallel: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and options of what a search looks at: of whole layers, or of split ones."""
    kinds = {} if parallel else EXCHANGES.loaded()
    others = {name: own for name, own in OTHERS.items() if own.parallel is parallel}
    for name, kind in (kinds | others).items():
        yield from ((name, options) for options in kind.searched)
