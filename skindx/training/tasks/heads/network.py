"""Many heads of one shape as one batched product.

M = heads, B = batch, D = dimensions, C = classes, W = hidden units
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from skindx.models.classifier.heads import Head, Mlp, make_head


class HeadStack(nn.Module):
    """Features M x B x D in, logits M x B x C out; each head sees its own features standardised."""

    mean_M1D: Tensor
    std_M1D: Tensor

    def __init__(
        self,
        head: Head,
        scales: Sequence[tuple[Tensor, Tensor]],
        classes: int,
        seeds: Sequence[int],
    ) -> None:
        super().__init__()
        dimensions = len(scales[0][0])
        self.heads = nn.ModuleList(_fresh(head, dimensions, classes, seed) for seed in seeds)
        self.register_buffer("mean_M1D", torch.stack([mean for mean, _ in scales])[:, None])
        self.register_buffer("std_M1D", torch.stack([std for _, std in scales])[:, None])

    def forward(self, features_MBD: Tensor) -> Tensor:
        """Return the logits of each head for its own features."""
        x = (features_MBD - self.mean_M1D) / self.std_M1D
        if isinstance(self.heads[0], Mlp):
            x = functional.gelu(_product(x, [head.get_submodule("fc1") for head in self.heads]))
            return _product(x, [head.get_submodule("fc2") for head in self.heads])
        return _product(x, list(self.heads))

    def state_of(self, number: int) -> dict[str, Tensor]:
        """Return one head's tensors for features as they are: the standardising is folded in."""
        head = self.heads[number]
        state = {name: value.detach().clone() for name, value in head.state_dict().items()}
        first = "fc1." if isinstance(head, Mlp) else ""
        mean_D, std_D = self.mean_M1D[number, 0], self.std_M1D[number, 0]
        weight = state[f"{first}weight"].double() / std_D.double()
        state[f"{first}bias"] = (state[f"{first}bias"] - weight @ mean_D.double()).float()
        state[f"{first}weight"] = weight.float()
        return state


def _fresh(head: Head, dimensions: int, classes: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    made = make_head(head, dimensions, classes)
    last = made.fc2 if isinstance(made, Mlp) else made
    assert isinstance(last, nn.Linear)
    nn.init.normal_(last.weight, std=0.01)  # starts from a nearly even guess
    nn.init.zeros_(last.bias)
    return made


def _product(x_MBD: Tensor, layers: Sequence[nn.Module]) -> Tensor:
    if len(layers) == 1:
        return functional.linear(x_MBD[0], layers[0].weight, layers[0].bias)[None]  # type: ignore[arg-type]
    weight_MDE = torch.stack([layer.weight for layer in layers]).transpose(1, 2)  # type: ignore[misc]
    bias_M1E = torch.stack([layer.bias for layer in layers])[:, None]  # type: ignore[misc]
    return torch.baddbmm(bias_M1E, x_MBD, weight_MDE)
