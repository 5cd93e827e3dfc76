"""What one's own bundle or training settings hold, as networks to measure."""

from copy import deepcopy
from pathlib import Path

import torch
from torch import nn

from skindx_bench.devices.networks import Network, timm_network


def config_networks(config: Path, batch: int | None) -> dict[str, Network]:
    """Return the members that a training would train, at their size and batch.

    Raises UserError for settings that cannot be read.
    """
    from skindx.training.config.run import TrainSettings

    settings = TrainSettings.load(config)
    return {
        f"member {member.name}": timm_network(
            member.model, member.preprocess.size, batch or settings.recipe.batch
        )
        for member in settings.members
    }


def bundle_networks(bundle: Path, batch: int) -> dict[str, Network]:
    """Return the members of a bundle, as torch runs them, at their size.

    Raises UserError for what is no bundle.
    """
    from skindx.models.bundle.bundle import open_bundle

    return {
        f"bundle {member.name}": _member(member.classifier, member.preprocess.size, batch)
        for member in open_bundle(bundle).ensemble().members
    }


def _member(classifier: nn.Module, side: int, batch: int) -> Network:
    shape = (side, side, 3)

    def build() -> nn.Module:
        return deepcopy(classifier).requires_grad_(True)

    def count() -> float:
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            classifier(torch.zeros(1, *shape))
        return float(counter.get_total_flops())

    return Network(build, shape, count, batch)
