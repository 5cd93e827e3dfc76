import numpy as np
import pytest
import torch
from torch import nn

from skindx.models.classifier.classifier import Classifier
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.ensemble import Member
from skindx.training.ensembles.builder import average, cook, mixer

SIZE = Preprocess(size=32)


class _Net(nn.Sequential):
    """As small as a network of timm's can be: a body and a head."""

    def forward_features(self, pixels: torch.Tensor) -> torch.Tensor:
        return self[:-1](pixels)

    def forward_head(self, map_: torch.Tensor) -> torch.Tensor:
        return self[-1](map_)


def _net(seed: int) -> _Net:
    torch.manual_seed(seed)
    net = _Net(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    net.append(nn.Linear(4 * 30 * 30, 3))
    net[1].running_mean.normal_()
    return net


def _state(seed: int) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in _net(seed).state_dict().items()}


def _images(seed: int, count: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def _member() -> Member:
    return Member("soup", Classifier(_net(0), SIZE).eval(), SIZE)


def test_the_mean_by_hand() -> None:
    first = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(7)}
    second = {"w": torch.tensor([3.0, 2.5]), "n": torch.tensor(9)}
    mean = average([first, second])
    assert mean["w"].tolist() == [2.0, 2.25]
    assert mean["w"].dtype == torch.float32
    assert mean["n"].item() == 7


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("greedy", [False, True])
def test_a_soup_of_one_network_is_it_to_the_bit(count: int, greedy: bool) -> None:
    state, learned = _state(5), []
    member = _member()
    mix = mixer(
        member, judge=lambda m: m.log_probabilities_of_squares([_images(0)]), learn=learned.append
    )
    soup, log_NC, _ = cook([state] * count, mix, np.arange(8) % 3, greedy=greedy)
    assert all(torch.equal(tensor, state[name]) for name, tensor in soup.items())
    assert learned == []
    member.classifier.net.load_state_dict(state)
    np.testing.assert_array_equal(log_NC, member.log_probabilities_of_squares([_images(0)]))


def test_statistics_are_those_of_the_training_images() -> None:
    member, batches = _member(), [_images(1), _images(2)]
    mix = mixer(
        member,
        judge=lambda m: m.log_probabilities_of_squares([_images(0)]),
        learn=lambda m: m.log_probabilities_of_squares(iter(batches)),
    )
    states = [_state(1), _state(2)]
    soup, log_NC = mix(states)
    mean = average(states)
    conv = nn.Conv2d(3, 4, 3)
    conv.load_state_dict({"weight": mean["0.weight"], "bias": mean["0.bias"]})
    scaled = [
        torch.from_numpy(batch).permute(0, 3, 1, 2) * member.classifier.scale
        + member.classifier.shift
        for batch in batches
    ]
    with torch.no_grad():
        seen = [conv(layer) for layer in scaled]
    by_hand = torch.stack([output.mean((0, 2, 3)) for output in seen]).mean(0)
    torch.testing.assert_close(soup["1.running_mean"], by_hand, rtol=1e-4, atol=1e-5)
    by_hand = torch.stack([output.var((0, 2, 3)) for output in seen]).mean(0)
    torch.testing.assert_close(soup["1.running_var"], by_hand, rtol=1e-4, atol=1e-5)
    assert not member.classifier.net[1].training
    assert member.classifier.net[1].momentum == 0.1
    assert log_NC.shape == (8, 3)


def test_a_greedy_soup_takes_what_does_not_harm() -> None:
    """Three ingredients by hand: the mean of 0 and 2 stays right, with 1 it turns wrong."""
    truth_N = np.array([0, 1])

    def mix(states: list[dict[str, torch.Tensor]]) -> tuple[dict[str, torch.Tensor], np.ndarray]:
        mean = average(states)
        odds_N = mean["w"].double().numpy()
        return mean, np.log(np.stack([odds_N, 1 - odds_N], axis=1))

    states = [{"w": torch.tensor(pair)} for pair in ([0.9, 0.2], [0.1, 0.9], [0.7, 0.7])]
    soup, log_NC, used = cook(states, mix, truth_N, greedy=True)
    assert used == [0, 2]
    np.testing.assert_allclose(soup["w"], [0.8, 0.45])
    np.testing.assert_allclose(np.exp(log_NC[:, 0]), soup["w"])
    assert cook(states, mix, truth_N, greedy=False)[2] == [0, 1, 2]
