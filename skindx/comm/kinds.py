"""Gradient exchanges: how ranks agree on the mean of their gradients, chosen by `exchange.kind`."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from skindx.comm.bucketed_exchange import (
    Hierarchical,
    HierarchicalSettings,
    Multicolor,
    MulticolorSettings,
)
from skindx.comm.exchange import Exchange, ExchangeSettings
from skindx.comm.factored_exchange import Factored, FactoredSettings
from skindx.comm.fused_exchange import Fused, FusedSettings
from skindx.comm.powersgd_exchange import PowerSGD, PowerSGDSettings
from skindx.comm.sparse_exchange import GTopK, GTopKSettings, TopK, TopKSettings


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
