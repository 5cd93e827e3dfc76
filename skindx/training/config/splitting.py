"""Which recipes go with layers that are split over ranks."""

from skindx.training.config.parallel import ParallelSettings
from skindx.training.config.recipe import Recipe


def check_splitting(member: str, recipe: Recipe, parallel: ParallelSettings) -> None:
    """Raise ValueError for what needs whole layers."""
    what = f"member {member}: engine.parallel.kind={parallel.kind} splits layers over the ranks"
    if recipe.optimizer in ("lars", "lamb"):
        raise ValueError(
            f"{what}, and optimizer={recipe.optimizer} adapts its rate to the norm of whole "
            "layers; take sgd or adamw, or engine.parallel.kind=data"
        )
    if recipe.preconditioner:
        raise ValueError(
            f"{what}, and preconditioner.kind={recipe.preconditioner.kind} works on whole layers; "
            "leave one of them out"
        )
