"""Layers split over as many ranks as a plan says (`engine.parallel.kind=operators`)."""

from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from ranks import run_ranks
from reference_training import MakeOptimizer, Reference, adaptive, train_reference
from torch import Tensor, nn

from skindx.comm.gtopk import GTopKSettings
from skindx.core.errors import UserError
from skindx.data.loader.batches import share
from skindx.training.config.engine import EngineSettings
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import join
from skindx.training.forms.operators import OperatorsSettings
from skindx.training.forms.parallel_form import DataSettings
from skindx.training.gradient_sync import GRADIENTS
from skindx.training.methods.sharding.parts import parts_of
from skindx.training.methods.sharding.split_network import split_network
from skindx.training.methods.sharding.wide_layers import layers_of
from skindx.training.parallel.mesh import leave, mesh_of_all

RANKS, IMAGES, STEPS = 4, 11, 20
LAMB = partial(adaptive, "lamb")
DEGREES = {"0": 2, "2": 4, "4": 2}
SPLIT = OperatorsSettings(degrees=DEGREES)
CPU = EngineSettings(accelerator="cpu", gradient_clip=0.5, parallel=SPLIT)


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3),  # with positions: two ranks have three channels of each image
        nn.ReLU(),
        nn.Conv2d(6, 10, 6),
        nn.Flatten(),
        nn.Linear(10, 31),
        nn.ReLU(),
        nn.Linear(31, 7),
    )


def _data(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(IMAGES, 3, 8, 8, generator=generator), torch.arange(IMAGES) % 7


def _sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


class Run:
    """An engine over the network, split as the plan says."""

    def __init__(self, exchange: Any = None, make: MakeOptimizer = _sgd, **change: Any) -> None:
        self.mesh = mesh_of_all(torch.device("cpu"), CPU.model_copy(update=change))
        self.net, self.said = _net(), list[str]()
        split_network(self.net, self.mesh, torch.zeros(1, 3, 8, 8), IMAGES, self.said.append)
        options = {"exchange": exchange} if exchange else {}
        self.engine = Engine(self.net, make(self.net), self.mesh, IMAGES, **options)

    def step(self, number: int, *, spoil: bool = False) -> bool:
        inputs, labels = _data(number)
        data, engine = self.mesh.data, self.engine
        own = torch.from_numpy(share(torch.arange(IMAGES).numpy(), data.rank, data.size))
        if spoil and data.rank == 2:
            self.net[4].weight.register_hook(lambda grad: grad * float("nan"))
        loss = nn.functional.cross_entropy(engine(inputs[own]), labels[own], reduction="sum")
        engine.backward(loss, IMAGES)
        return engine.step(0.1)

    def weights(self) -> dict[str, Any]:
        weights = self.engine.state_dict()["weights"]
        return {name: value.detach().clone().numpy() for name, value in weights.items()}

    def sent(self) -> list[int]:
        return [
            *(links.bytes_sent for links in self.engine.method.axes),
            self.engine._sync.bytes_sent,
        ]


def _on_four_ranks() -> dict[str, Any]:
    join(CPU)
    run, found = Run(gradient_clip=0.0), dict[str, Any]()

    def keep(net: nn.Module) -> None:
        parts = parts_of(net)
        found["gradients"] = {
            name: (parts[name].whole if name in parts else Tensor.clone)(weight.grad).numpy()
            for name, weight in net.named_parameters()
        }

    run.engine.precondition = keep
    run.step(0)
    run.engine.close()
    run = Run()
    for number in range(STEPS):
        assert run.step(number)
    found["steps"], found["said"] = run.weights(), run.said
    found["held"] = {name: weight.numel() for name, weight in run.net.named_parameters()}
    before, waits = run.sent(), list[str]()

    def around(name: str) -> AbstractContextManager[None]:
        waits.append(name)
        return nullcontext()

    run.engine.watch(around)
    run.step(99)
    run.engine.watch(None)
    found["waits"] = waits
    found["sent"] = [now - then for now, then in zip(run.sent(), before, strict=True)]
    before = run.weights()
    found["taken"] = run.step(100, spoil=True)
    after = run.weights()
    found["unchanged"] = all((before[name] == after[name]).all() for name in before)
    state = run.engine.state_dict()
    run.engine.close()
    for name, parallel in (("there", DataSettings()), ("back", SPLIT)):
        run = Run(parallel=parallel)
        run.engine.load_state_dict(deepcopy(state))
        assert run.step(101)
        found[name] = run.weights()
        run.engine.close()
    run = Run(make=LAMB, parallel=DataSettings())
    run.step(0)
    for number, parallel in enumerate((SPLIT, DataSettings(), SPLIT), start=1):
        state = deepcopy(run.engine.state_dict())
        run.engine.close()
        run = Run(make=LAMB, parallel=parallel)
        run.engine.load_state_dict(state)
        assert run.step(number)
    found["lamb"] = run.weights()
    run.engine.close()
    run = Run(GTopKSettings(density=1, warmup=()))
    run.step(0)
    found["gtopk"] = run.weights()
    run.engine.close()
    leave()
    return found


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_ranks(RANKS, _on_four_ranks)
    return found


def _alone(steps: int, make: MakeOptimizer = _sgd) -> Reference:
    net = _net()
    return train_reference(net, make(net), _data, steps)


def _close(found: dict[str, Any], expected: dict[str, Any], relative: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        wanted = torch.as_tensor(expected[name])
        difference = (torch.from_numpy(value) - wanted).norm()
        assert difference <= relative * wanted.norm(), name


@pytest.mark.distributed
def test_gradients_and_weights_are_those_of_one_process(ranks: Any) -> None:
    reference, once = _alone(STEPS), _alone(1).weights
    for result in ranks:
        _close(result["gradients"], reference.gradients, 1e-5)
        _close(result["steps"], reference.weights, 1e-4)
        _close(result["gtopk"], once, 1e-4)
        _close(result["there"], result["back"], 1e-4)


@pytest.mark.distributed
def test_lamb_goes_on_under_data_parallelism_and_back_as_on_one_process(ranks: Any) -> None:
    expected = _alone(4, LAMB).weights
    for result in ranks:
        _close(result["lamb"], expected, 1e-5)


@pytest.mark.distributed
def test_bytes_of_each_axis_are_those_of_the_formula(ranks: Any) -> None:
    assert "0, 2, 4 are split over up to 4 ranks" in ranks[0]["said"][0]
    rows = [len(part) for part in torch.arange(IMAGES).tensor_split(RANKS)]
    layers = {"0": (3 * 64, 6, 36), "2": (216, 10, 1), "4": (10, 31, 1)}
    for rank, result in enumerate(ranks):
        sent = dict.fromkeys((2, 4), 0)
        for name, (values_in, channels, places) in layers.items():
            degree = DEGREES[name]
            group = rows[rank - rank % degree :][:degree]
            own, place = rows[rank], rank % degree
            columns = [len(part) for part in torch.arange(channels).tensor_split(degree)][place]
            others = sum(group) - own
            forward = (degree - 1) * own * values_in + others * columns * places
            backward = own * (channels - columns) * places
            backward += others * values_in if name != "0" else 0  # images have no gradient
            sent[degree] += 4 * (forward + backward)
            weights = {"0": 27, "2": 216, "4": 10}[name]
            assert result["held"][f"{name}.weight"] == columns * weights
        # Two groups hold the same halves of 0 and 4; the last layer is everybody's.
        halves = sum(result["held"][f"{name}.{own}"] for name in "04" for own in ("weight", "bias"))
        everybodys = 2 * (RANKS - 1) * (31 * 7 + 7) // RANKS
        assert result["sent"] == [sent[2], sent[4], 4 * halves + 4 * everybodys]


@pytest.mark.distributed
def test_what_a_rank_waits_for_is_told_to_a_timeline(ranks: Any) -> None:
    for result in ranks:
        layers = len(DEGREES)
        borders = ["gather"] * layers + ["regroup"] * layers  # forward
        assert sorted(result["waits"][: 2 * layers]) == sorted(borders)
        assert result["waits"][2 * layers : -1] == ["regroup"] * (2 * layers - 1)
        assert result["waits"][-1] == GRADIENTS


@pytest.mark.distributed
def test_a_gradient_that_is_not_finite_on_one_rank_is_taken_by_none(ranks: Any) -> None:
    for result in ranks:
        assert result["taken"] is False
        assert result["unchanged"]


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(UserError, match="4 cannot be split over 32 ranks"):
        layers_of(_net(), OperatorsSettings(degrees={"4": 32}))
    assert not layers_of(_net(), OperatorsSettings(degrees={"of.another": 2}))
    with pytest.raises(UserError, match="2 ranks, which do not divide the 3"):
        OperatorsSettings(degrees={"4": 2}).group_size(3)
    for degrees in ({}, {"a": 1}):
        with pytest.raises(UserError, match="degrees"):
            TrainSettings.parse({"engine": {"parallel": {"kind": "operators", "degrees": degrees}}})
