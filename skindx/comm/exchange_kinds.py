"""Gradient exchanges: how ranks agree on the mean of their gradients, chosen by `exchange.kind`."""

from typing import TYPE_CHECKING

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.core.kinds import METHODS, Family, load_object

if TYPE_CHECKING:
    from skindx.comm.exchange import Exchange

EXCHANGES = Family(
    "exchange",
    "skindx.exchanges",
    {
        "dense": "skindx.comm.dense:DenseSettings",
        "fused": "skindx.comm.fused:FusedSettings",
        "topk": "skindx.comm.topk:TopKSettings",
        "gtopk": "skindx.comm.gtopk:GTopKSettings",
        "hierarchical": "skindx.comm.hierarchical:HierarchicalSettings",
        "multicolor": "skindx.comm.multicolor:MulticolorSettings",
        "powersgd": "skindx.comm.powersgd:PowerSGDSettings",
    },
    elsewhere={"factored": METHODS, "local": METHODS},
)

if TYPE_CHECKING:
    AnyExchange = ExchangeSettings
else:
    AnyExchange = EXCHANGES.union()


def build_exchange(settings: ExchangeSettings) -> "Exchange | None":
    """Return the exchange of these settings, or None for the engine's own."""
    return load_object(settings.code)(settings) if settings.code else None
