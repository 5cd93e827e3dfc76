from typing import Any

import pytest
import torch
from timm.optim import SGDW, Lamb, Lars
from torch import nn

from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.training.config.recipe import Recipe
from skindx.training.tasks.optimizer import build_optimizer, layer_depths


def test_decay_spares_biases_and_norms_and_the_head_has_its_own_rate() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    recipe = Recipe(learning_rate=0.01, head_learning_rate=0.1, weight_decay=0.5)
    optimizer = build_optimizer(net, recipe, fresh=["3.weight", "3.bias"])
    found = {
        id(parameter): (group["weight_decay"], round(group["lr_scale"], 6))
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    expected = {
        "0.weight": (0.5, 1.0),
        "0.bias": (0.0, 1.0),
        "1.weight": (0.0, 1.0),
        "1.bias": (0.0, 1.0),
        "3.weight": (0.5, 10.0),
        "3.bias": (0.0, 10.0),
    }
    assert {name: found[id(p)] for name, p in net.named_parameters()} == expected


@pytest.mark.parametrize("model", ["test_resnet", "mobilenetv3_small_050", "test_convnext"])
def test_lower_layers_learn_more_slowly(model: str) -> None:
    with torch.device("meta"):
        classifier = build_classifier(ClassifierSettings(model=model), 3)
    depths = layer_depths(classifier)
    names = [name for name, _ in classifier.named_parameters()]
    assert depths.keys() == set(names)
    assert depths[names[-1]] == 0  # the head
    assert depths[names[0]] == max(depths.values()) > 3  # the stem
    head = [name for name in names if depths[name] == 0]
    recipe = Recipe(layer_decay=0.5, learning_rate=0.1, head_learning_rate=0.3)
    optimizer = build_optimizer(classifier, recipe, fresh=head)
    scale = {id(p): g["lr_scale"] for g in optimizer.param_groups for p in g["params"]}
    for name, parameter in classifier.named_parameters():
        expected = 3.0 if name in head else 0.5 ** depths[name]
        assert scale[id(parameter)] == pytest.approx(expected)


@pytest.mark.parametrize("name", ["lars", "lamb"])
def test_norms_and_biases_are_not_adapted(name: str) -> None:
    """LARS by hand: a step of rate * eta |w| / |g| along g; a bias takes rate * g."""
    net = nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[3.0, 4.0]]))
        net.bias.zero_()
    recipe = Recipe(optimizer=name, learning_rate=1.0, weight_decay=0)
    optimizer = build_optimizer(net, recipe, fresh=[])
    net.weight.grad, net.bias.grad = torch.tensor([[0.0, 2.0]]), torch.tensor([2.0])
    optimizer.step()
    if name == "lars":
        # Nesterov's first step is 1 + 0.9 times the gradient; eta = 0.001, |w| = 5, |g| = 2.
        assert net.weight[0, 1].item() == pytest.approx(4 - 1.9 * 0.001 * 5)
        assert net.bias.item() == pytest.approx(-1.9 * 2)
    else:
        # Adam's first step is a sign; LAMB gives it the length of the weights, 5.
        assert net.weight.tolist()[0] == pytest.approx([3, -1], abs=1e-4)
        assert net.bias.item() == pytest.approx(-1, abs=1e-4)


def _moved(optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> torch.Tensor:
    """Take three steps along gradients whose norms differ much."""
    for step, length in enumerate((0.1, 30.0, 1.0)):
        generator = torch.Generator().manual_seed(step)
        weight.grad = length * torch.randn(weight.shape, generator=generator)
        optimizer.step()
    return weight.detach()


REFERENCES: dict[str, Any] = {
    "sgd": lambda weights: torch.optim.SGD(weights, 0.1, 0.9, 0, 0.05, nesterov=True),
    "lars": lambda weights: Lars(weights, 0.1, 0.9, 0, 0.05, nesterov=True, trust_coeff=0.02),
    "adamw": lambda weights: torch.optim.AdamW(weights, 0.1, weight_decay=0.05),
    "lamb": lambda weights: Lamb(weights, 0.1, weight_decay=0.05, max_grad_norm=None),
    "preconditioned": lambda weights: SGDW(weights, 0.1, 0.9, 0.1, 0.05),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_an_optimizer_takes_the_steps_of_its_reference(name: str) -> None:
    raw: dict[str, Any] = {"learning_rate": 0.1, "weight_decay": 0.05, "momentum": 0.9}
    raw |= {"optimizer": "adamw", "preconditioner": {"kind": "kfac"}} if name not in (
        "sgd", "lars", "adamw", "lamb"
    ) else {"optimizer": name, "trust_coefficient": 0.02}  # fmt: skip
    recipe = Recipe.model_construct(**{**Recipe().model_dump(), **raw})
    nets = [nn.Linear(4, 3, bias=False) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    made = build_optimizer(nets[0], recipe, fresh=[])
    reference = REFERENCES[name](nets[1].parameters())
    torch.testing.assert_close(_moved(made, nets[0].weight), _moved(reference, nets[1].weight))
