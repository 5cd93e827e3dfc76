"""Layers in stages (`engine.parallel.kind=model`) compute what one process computes."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from ranks import run_ranks
from staged_networks import IMAGE, network
from states import as_arrays, assert_near
from torch import Tensor, nn

from skindx.comm.fused import FusedSettings
from skindx.data.loader.batches import share
from skindx.training.config.engine import EngineSettings
from skindx.training.config.recipe import Ema, Recipe
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import join
from skindx.training.forms.pipeline import ModelSettings
from skindx.training.methods.sharding.parts import parts_of
from skindx.training.methods.sharding.pieces import counts_of, pieces_of
from skindx.training.methods.sharding.split_network import split_network
from skindx.training.parallel.mesh import leave, mesh_of_all, sizes_of
from skindx.training.tasks.optimizer import WeightAverage, build_optimizer

RANKS, IMAGES, STEPS, FEW, MICRO = 4, 11, 20, 3, 4
"""Eleven images on four ranks, in four micro-batches: all shares are uneven."""
CPU = EngineSettings(accelerator="cpu", gradient_clip=0.5)


def _data(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(IMAGES, 3, 8, 8, generator=generator), torch.arange(IMAGES) % 7


def _optimizer(net: nn.Module, name: str) -> torch.optim.Optimizer:
    return build_optimizer(net, Recipe(optimizer=name, learning_rate=0.1), [])


class Run:
    """An engine over the network, in stages as its settings say."""

    def __init__(
        self,
        stages: int,
        kind: str = "plain",
        *,
        optimizer: str = "sgd",
        frozen: tuple[str, ...] = (),
        micro: int = MICRO,
        wire: str = "fp32",
        **change: Any,
    ) -> None:
        if stages > 1:
            change["parallel"] = ModelSettings(stages=stages, micro_batches=micro)
        self.mesh = mesh_of_all(torch.device("cpu"), CPU.model_copy(update=change))
        self.net, self.said = network(kind), list[str]()
        for name in frozen:
            self.net.get_submodule(name).requires_grad_(False)
        split_network(self.net, self.mesh, IMAGE, IMAGES, self.said.append)
        self.average = WeightAverage(self.net, Ema(decay=0.5, warmup=False))
        self.engine = Engine(
            self.net,
            _optimizer(self.net, optimizer),
            self.mesh,
            IMAGES,
            exchange=FusedSettings(tune=False, wire=wire),
        )

    def step(self, number: int, *, pieces: int = 1, spoil: str = "") -> bool:
        inputs, labels = _data(number)
        data, engine = self.mesh.data, self.engine
        own = torch.from_numpy(share(torch.arange(IMAGES).numpy(), data.rank, data.size))
        if spoil:  # on the rank that computes it, and nowhere else
            self.net.get_submodule(spoil).weight.register_hook(lambda grad: grad * float("nan"))
        parts = list(
            zip(inputs[own].tensor_split(pieces), labels[own].tensor_split(pieces), strict=True)
        )
        for piece, (images, targets) in enumerate(parts, start=1):
            loss = nn.functional.cross_entropy(engine(images), targets, reduction="sum")
            engine.backward(loss, IMAGES, last=piece == pieces)
        taken = engine.step(0.1)
        self.average.update(self.net, number + 1)
        return taken

    def weights(self) -> dict[str, Any]:
        return as_arrays(self.engine.state_dict()["weights"])


def _gradients(stages: int, kind: str) -> dict[str, Any]:
    run, found = Run(stages, kind, gradient_clip=0.0), {}

    def keep(net: nn.Module) -> None:
        parts = parts_of(net)
        for name, weight in net.named_parameters():
            found[name] = parts[name].whole(weight.grad).clone().numpy()

    run.engine.precondition = keep
    run.step(0)
    run.engine.close()
    return found


def _trained(stages: int, kind: str = "plain", *, steps: int = FEW, **change: Any) -> Any:
    pieces = change.pop("pieces", 1)
    run = Run(stages, kind, **change)
    for number in range(steps):
        assert run.step(number, pieces=pieces)
    found = run.weights()
    run.engine.close()
    return found


def _on_four_ranks() -> dict[str, Any]:
    join(CPU)
    found: dict[str, Any] = {
        (stages, kind): _gradients(stages, kind)
        for stages, kind in ((4, "plain"), (2, "plain"), (4, "vit"))
    }
    run = Run(4)
    for number in range(STEPS):
        assert run.step(number)
    found["steps"], found["said"] = run.weights(), run.said
    found["held"] = sum(weight.numel() for weight in run.net.parameters())
    run.engine.train(False)
    evaluated = run.engine.whole()
    found["whole"] = as_arrays(evaluated.state_dict())
    found["logits"] = evaluated(_data(0)[0]).detach().numpy()
    run.engine.train()
    found["average"] = as_arrays(run.average.state_dict())
    links, fabric = run.engine.method.links, run.engine._sync.fabric
    before = links.bytes_sent, fabric.bytes_sent
    run.step(99)
    found["sent"] = [links.bytes_sent - before[0], fabric.bytes_sent - before[1]]
    before = run.weights()
    found["taken"] = run.step(100, spoil="5")
    after = run.weights()
    found["unchanged"] = all((before[name] == after[name]).all() for name in before)
    state = run.engine.state_dict()
    run.engine.close()

    # What was saved goes on under data parallelism, and from there in other stages.
    moved = {}
    for stages in (4, 1, 2):
        run = Run(stages)
        run.engine.load_state_dict(deepcopy(state))
        assert run.step(101)
        moved[stages] = run.weights()
        state = run.engine.state_dict() if stages == 1 else state
        if stages == 2:
            assert run.step(102)
        run.engine.close()
    found["moved"] = moved

    leave()
    return found


def _other_steps() -> dict[str, Any]:
    join(CPU)
    found: dict[str, Any] = {
        "twice": _trained(2, pieces=2),
        "frozen": _trained(4, frozen=FROZEN),
        "lamb": _trained(4, optimizer="lamb"),
        "lars": _trained(2, optimizer="lars"),
        "again": _trained(4, activation_checkpointing=True, kind="vit"),
        "bf16": _trained(2, precision="bf16", wire="bf16"),
    }
    run = Run(4, "norm")
    for number in range(FEW):
        run.step(number)
    found["norm"], found["norm said"] = as_arrays(run.engine.full_state()), run.said[-1]
    run.engine.close()
    leave()
    return found


FROZEN = ("0", "1", "3", "7")


@pytest.fixture(scope="module")
def ranks() -> list[dict[Any, Any]]:
    found: list[dict[Any, Any]] = run_ranks(RANKS, _on_four_ranks)
    return found


@pytest.fixture(scope="module")
def others() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_ranks(RANKS, _other_steps)
    return found


def _alone(
    kind: str = "plain",
    steps: int = STEPS,
    *,
    optimizer: str = "sgd",
    frozen: tuple[str, ...] = (),
    parts: int = 1,
) -> tuple[dict[str, Tensor], dict[str, Tensor], nn.Module]:
    """Return the first gradients, the weights, and the average after all steps of one process."""
    net, first = network(kind), dict[str, Tensor]()
    for name in frozen:
        net.get_submodule(name).requires_grad_(False)
    average = WeightAverage(net, Ema(decay=0.5, warmup=False))
    moves = _optimizer(net, optimizer)
    for group in moves.param_groups:
        group["lr"] = 0.1
    for number in range(steps):
        inputs, labels = _data(number)
        moves.zero_grad()
        sizes = list(sizes_of(IMAGES, parts))
        for images, targets in zip(inputs.split(sizes), labels.split(sizes), strict=True):
            loss = nn.functional.cross_entropy(net(images), targets, reduction="sum")
            (loss / IMAGES).backward()
        trained = {name: weight for name, weight in net.named_parameters() if weight.requires_grad}
        first = first or {name: weight.grad.clone() for name, weight in trained.items()}
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        moves.step()
        average.update(net, number + 1)
    return first, net.state_dict(), average.module


@pytest.mark.distributed
@pytest.mark.parametrize(("stages", "kind"), [(4, "plain"), (2, "plain"), (4, "vit")])
def test_gradients_are_those_of_one_process(ranks: Any, stages: int, kind: str) -> None:
    expected = _alone(kind, 1)[0]
    for result in ranks:
        assert result[stages, kind].keys() == expected.keys()
        assert_near(result[stages, kind], expected, 1e-5, 1e-9)


@pytest.mark.distributed
def test_weights_and_average_after_many_steps_are_those_of_one_process(ranks: Any) -> None:
    _, weights, average = _alone()
    for result in ranks:
        assert_near(result["steps"], weights, 1e-4, 1e-9)
        assert_near(result["average"], average.state_dict(), 1e-4, 1e-9)


@pytest.mark.distributed
def test_evaluation_sees_the_whole_network(ranks: Any) -> None:
    for result in ranks:
        net = network().eval()
        net.load_state_dict({name: torch.from_numpy(v) for name, v in result["whole"].items()})
        found = torch.from_numpy(result["logits"])
        torch.testing.assert_close(found, net(_data(0)[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.distributed
def test_bytes_and_memory_are_those_of_the_formula(ranks: Any) -> None:
    net = network()
    found = pieces_of(net, IMAGE)
    counts = counts_of(found, ModelSettings(stages=RANKS))
    lasts = [sum(counts[: stage + 1]) - 1 for stage in range(RANKS)]
    borders = [found.pieces[last].onward.shape.numel() for last in lasts]
    rows = [len(part) for part in torch.arange(IMAGES).tensor_split(RANKS)]
    image, given = 3 * 8 * 8, 7
    for rank, result in enumerate(ranks):
        values = borders[rank] * IMAGES if rank < RANKS - 1 else 0
        values += borders[rank - 1] * IMAGES if rank else 0
        values += rows[rank] * image if rank else 0
        values += (IMAGES - rows[rank] if rank == RANKS - 1 else rows[rank]) * given
        assert result["sent"] == [4 * values, 0]
    every = sum(weight.numel() for weight in net.parameters())
    assert sum(result["held"] for result in ranks) == every
    assert "4 stages" in ranks[0]["said"][0]


@pytest.mark.distributed
def test_a_gradient_that_is_not_finite_on_one_rank_is_taken_by_none(ranks: Any) -> None:
    for result in ranks:
        assert result["taken"] is False
        assert result["unchanged"]


@pytest.mark.distributed
def test_a_state_goes_on_under_data_parallelism_and_back(ranks: Any) -> None:
    for result in ranks:
        in_stages = {name: torch.from_numpy(v) for name, v in result["moved"][4].items()}
        assert_near(result["moved"][1], in_stages, 1e-4, 1e-9)
        assert all(
            (v == ranks[0]["moved"][2][name]).all() for name, v in result["moved"][2].items()
        )


@pytest.mark.long
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("twice", {}),
        ("frozen", {"frozen": FROZEN}),
        ("lamb", {"optimizer": "lamb"}),
        ("lars", {"optimizer": "lars"}),
        ("again", {"kind": "vit"}),
    ],
)
def test_what_changes_a_step_changes_it_as_on_one_process(
    others: Any, name: str, change: dict[str, Any]
) -> None:
    expected = _alone(steps=FEW, **change)[1]
    for result in others:
        assert_near(result[name], expected, 1e-4, 1e-9)


@pytest.mark.long
@pytest.mark.distributed
def test_half_precision_is_near(others: Any) -> None:
    expected = _alone(steps=FEW)[1]
    for result in others:
        # Biases are still near zero, and so is what is left of them in eight bits.
        assert_near(
            {name: v for name, v in result["bf16"].items() if v.ndim > 1}, expected, 0.1, 1e-9
        )


@pytest.mark.long
@pytest.mark.distributed
def test_batch_norm_sees_micro_batches(others: Any) -> None:
    expected = _alone("norm", FEW, parts=MICRO)[1]
    for result in others:
        assert_near(result["norm"], expected, 1e-4, 1e-9)
        assert "about 2 images" in result["norm said"]
