"""Gradient exchanges: how ranks agree on the mean of their gradients, chosen by `exchange.kind`."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from skindx.comm.exchange import Exchange, ExchangeSettings
from skindx.comm.factored import Factored, FactoredSettings
from skindx.comm.fused import Fused, FusedSettings
from skindx.comm.gtopk import GTopK, GTopKSettings
from skindx.comm.hierarchical import Hierarchical, HierarchicalSettings
from skindx.comm.multicolor import Multicolor, MulticolorSettings
from skindx.comm.powersgd import PowerSGD, PowerSGDSettings
from skindx.comm.topk import TopK, TopKSettings


class DenseSettings(ExchangeSettings):
    """DeepSpeed's own reduction, after backward."""

    kind: Literal["dense"] = "dense"


EXCHANGES: dict[type[ExchangeSettings], type[Any] | None] = {
    DenseSettings: None,
    FusedSettings: Fused,
    FactoredSettings: Factored,
    TopKSettings: TopK,
    GTopKSettings: GTopK,
    HierarchicalSettings: Hierarchical,
    MulticolorSettings: Multicolor,
    PowerSGDSettings: PowerSGD,
}
"""Settings of each kind -> the exchange; none: the engine's own."""

if TYPE_CHECKING:
    AnyExchange = ExchangeSettings
else:
    AnyExchange = Annotated[reduce(or_, EXCHANGES), Field(discriminator="kind")]


def build_exchange(settings: ExchangeSettings) -> Exchange | None:
    """Return the exchange of these settings, or None for the engine's own."""
    kind = EXCHANGES[type(settings)]
    exchange: Exchange | None = kind(settings) if kind else None
    return exchange


__all__ = [
    "EXCHANGES",
    "AnyExchange",
    "DenseSettings",
    "Exchange",
    "ExchangeSettings",
    "build_exchange",
]
