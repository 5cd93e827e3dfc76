"""What one's own bundle or training settings hold, as networks to measure."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from skindx.bench.devices.networks import Network, timm_network
from skindx.bench.devices.work import Case, Work


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


def bundle_cases(bundle: Path, batch: int) -> Iterator[Case]:
    """Yield inference of each member of a bundle, as a diagnosis runs it.

    Raises UserError for what is no bundle.
    """
    from skindx.models.bundle.bundle import open_bundle

    for member in open_bundle(bundle).ensemble().members:

        def bind(device: torch.device, member: Any = member) -> Work:
            from torch.utils.flop_counter import FlopCounterMode

            side = member.preprocess.size
            square = torch.zeros(1, side, side, 3, dtype=torch.uint8)
            with FlopCounterMode(display=False) as counter, torch.inference_mode():
                member.classifier.cpu()(square)
            model = member.classifier.to(device)
            squares = square.expand(batch, -1, -1, -1).contiguous().to(device)

            def infer() -> Tensor:
                with torch.inference_mode():
                    out: Tensor = model(squares)
                return out

            return Work(infer, batch, float(counter.get_total_flops()) * batch)

        yield Case(f"bundle {member.name}", "fp32", "inference", "network", bind)
