"""Changes of a network by the engine's settings, before the engine gets it."""

from typing import Any

from torch import nn

from skindx.core.errors import UserError
from skindx.training.config.engine import EngineSettings
from skindx.training.parallel.batch_norm import count_once, synchronise


def prepare(module: nn.Module, settings: EngineSettings, world: int) -> None:
    """Change `module` in place; names and values of its weights stay the same.

    Raises UserError when timm cannot checkpoint the activations of this network.
    """
    if settings.sync_batch_norm and world > 1:
        synchronise(module)
    if settings.activation_checkpointing:
        checkpoint_activations(module)
        count_once(module)
    if settings.compile:
        module.compile()


def checkpoint_activations(module: nn.Module) -> None:
    """Switch on timm's own checkpointing. Raises UserError for a network that has none."""
    net: Any = getattr(module, "net", module)
    try:
        net.set_grad_checkpointing(True)
    except (AttributeError, AssertionError):
        raise UserError(
            f"engine.activation_checkpointing: {type(net).__name__} cannot compute its "
            "activations again; set it to false, or choose another model."
        ) from None
