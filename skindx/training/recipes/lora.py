"""Low-rank updates of a given network (LoRA, Hu et al. 2021, arXiv 2106.09685, eq. 3).

W + (alpha / r) B A with A of r x in and B of out x r takes the place of each linear layer's weight
below the head. W, biases and norms stay as they were given; A, B and the head learn. What is
validated, kept and packed is the sum: a network like any other.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from skindx.core.errors import UserError
from skindx.models.classifier.classifier import Classifier
from skindx.models.classifier.heads import head_place
from skindx.training.config.heads import LoraSettings


class LowRank(nn.Module):
    """W in, W + (alpha / r) B A out; B starts at zero, so that nothing changes at first."""

    def __init__(self, weight: Tensor, settings: LoraSettings) -> None:
        super().__init__()
        out, into = weight.shape
        rank = min(settings.rank, out, into)
        self.scale = settings.alpha / settings.rank
        self.down = nn.Parameter(torch.empty(rank, into))
        self.up = nn.Parameter(torch.zeros(out, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the updated weight."""
        return weight + self.scale * (self.up @ self.down)


def add_low_rank(classifier: Classifier, settings: LoraSettings) -> None:
    """Freeze a network but for its head, and give its linear layers low-rank updates.

    Raises UserError for a network without linear layers below its head.
    """
    net = classifier.net
    place = head_place(net)
    found = [
        (name, module)
        for name, module in net.named_modules()
        if isinstance(module, nn.Linear)
        and name.split(".")[: place.count(".") + 1] != place.split(".")
    ]
    if not found:
        raise UserError(
            f"trunk=lora updates linear layers, and {type(net).__name__} has none below its head; "
            "take a transformer, or trunk=frozen."
        )
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name.startswith(f"{place}."))
    for _, module in found:
        parametrize.register_parametrization(
            module, "weight", LowRank(module.weight, settings), unsafe=True
        )


def plain_state(net: nn.Module) -> dict[str, Tensor]:
    """Return a network's tensors under their own names, low-rank updates added."""
    state = {}
    for name, tensor in net.state_dict().items():
        module, found, rest = name.partition(".parametrizations.")
        if not found:
            state[name] = tensor
        elif rest == "weight.original":
            weight = net.get_submodule(module).weight
            assert isinstance(weight, Tensor)
            state[f"{module}.weight"] = weight.detach()
    return state
