"""Checks of recipes that go with layers split over ranks."""

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.kinds import EXCHANGES
from skindx.training.config.recipe import Recipe
from skindx.training.forms.parallel_form import ParallelSettings


def check_splitting(member: str, recipe: Recipe, parallel: ParallelSettings) -> None:
    """Raise ValueError for what needs whole layers."""
    what = f"member {member}: engine.parallel.kind={parallel.kind} splits layers over the ranks"
    if recipe.preconditioner:
        raise ValueError(
            f"{what}, and preconditioner.kind={recipe.preconditioner.kind} works on whole layers; "
            "leave one of them out"
        )


def check_exchange(exchange: ExchangeSettings, parallel: ParallelSettings) -> None:
    """Raise ValueError for an exchange that cannot act among the ranks with equal parts."""
    if parallel.by_peers and not exchange.among_peers:
        *first, last = (kind for kind, own in EXCHANGES.loaded().items() if own.among_peers)
        raise ValueError(
            f"exchange.kind={exchange.kind} goes by all gradients, or by all ranks, and under "
            f"engine.parallel.kind={parallel.kind} only ranks with the same parts exchange theirs; "
            f"take {', '.join(first)} or {last}"
        )
