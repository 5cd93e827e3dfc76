"""Wide layers split over ranks (`engine.parallel.kind=owt`) compute what one process computes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import run_ranks
from reference_training import Reference, train_reference
from states import as_arrays, assert_near
from torch import Tensor, nn

from skindx.comm.dense import DenseSettings
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.gtopk import GTopKSettings
from skindx.data.loader.batches import share
from skindx.training.config.engine import EngineSettings
from skindx.training.config.recipe import Ema
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import join
from skindx.training.parallel.mesh import Mesh, leave
from skindx.training.tasks.optimizer import WeightAverage
from skindx_methods.split_layers.owt_form import OwtSettings
from skindx_methods.split_layers.parts import parts_of
from skindx_methods.split_layers.wide_layers import rounds_of, split_network

RANKS, IMAGES, STEPS, FEW = 4, 11, 20, 3
"""Eleven images on four ranks: their shares are uneven, and so are the widths below."""
OWT = EngineSettings(
    accelerator="cpu",
    gradient_clip=0.5,
    sync_batch_norm=True,
    parallel=OwtSettings(min_weights=200),
)
DATA = OWT.model_copy(update={"parallel": EngineSettings().parallel})


def _net(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 10, 6),  # as large as its map
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(10, 30),
        nn.ReLU(),
        nn.Linear(30, 7),
    )


IMAGE = torch.zeros(1, 3, 8, 8)
FROZEN = ("0", "1", "3", "6")


def _data(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(IMAGES, 3, 8, 8, generator=generator), torch.arange(IMAGES) % 7


def _sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([w for w in net.parameters() if w.requires_grad], lr=0.1, momentum=0.9)


class Run:
    """An engine over the network, split as its settings say."""

    def __init__(
        self,
        mesh: Mesh,
        settings: EngineSettings,
        *,
        dropout: float = 0.0,
        exchange: ExchangeSettings | None = None,
        frozen: tuple[str, ...] = (),
    ) -> None:
        tensor = mesh.tensor if settings.parallel.kind == "owt" else Mesh.tensor
        self.mesh = Mesh(mesh.data, mesh.device, settings, tensor=tensor)
        self.net, self.said = _net(dropout), list[str]()
        for name in frozen:
            self.net.get_submodule(name).requires_grad_(False)
        if settings.parallel.splits:
            split_network(self.net, self.mesh, IMAGE, IMAGES, self.said.append)
        self.average = WeightAverage(self.net, Ema(decay=0.5, warmup=False))
        self.engine = Engine(
            self.net, _sgd(self.net), self.mesh, IMAGES, exchange=exchange or DenseSettings()
        )

    def step(self, number: int, *, pieces: int = 1, spoil: str = "") -> bool:
        inputs, labels = _data(number)
        data, engine = self.mesh.data, self.engine
        own = torch.from_numpy(share(torch.arange(IMAGES).numpy(), data.rank, data.size))
        torch.manual_seed(100 * number + data.rank)
        if spoil and data.rank == 2:  # the gradient of this rank's outputs alone
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


def _tensors(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _tensors(value) for key, value in state.items()}
    return torch.from_numpy(state) if hasattr(state, "dtype") else state


def _gradients(mesh: Mesh) -> dict[str, Any]:
    run, found = Run(mesh, OWT.model_copy(update={"gradient_clip": 0.0})), {}

    def keep(net: nn.Module) -> None:
        parts = parts_of(net)
        for name, weight in net.named_parameters():
            whole: Callable[[Tensor], Tensor] = parts[name].whole if name in parts else Tensor.clone
            found[name] = whole(weight.grad).numpy()

    run.engine.precondition = keep
    run.step(0)
    run.engine.close()
    return found


def _trained(mesh: Mesh, settings: EngineSettings, **changes: Any) -> tuple[dict[str, Any], Run]:
    pieces, steps = changes.pop("pieces", 1), changes.pop("steps", FEW)
    run = Run(mesh, settings, **changes)
    for number in range(steps):
        assert run.step(number, pieces=pieces)
    return run.weights(), run


def _on_four_ranks() -> dict[str, Any]:
    mesh = join(OWT)
    found: dict[str, Any] = {"gradients": _gradients(mesh)}
    found["steps"], run = _trained(mesh, OWT, steps=STEPS)
    found["said"] = run.said
    found["held"] = {name: weight.numel() for name, weight in run.net.named_parameters()}
    evaluated = run.engine.train(False) or run.engine.whole()
    found["whole"] = as_arrays(evaluated.state_dict())
    found["logits"] = evaluated(_data(0)[0]).detach().numpy()
    run.engine.train()
    found["average"] = as_arrays(run.average.state_dict())
    assert run.engine.exchange is None
    links, sync = run.engine.method.links, run.engine._sync
    before = links.bytes_sent, sync.fabric.bytes_sent
    run.step(99)
    found["sent"] = [links.bytes_sent - before[0], sync.fabric.bytes_sent - before[1]]

    before = run.weights()
    found["taken"] = [run.step(100, spoil="6")]
    after = run.weights()
    found["unchanged"] = all((before[name] == after[name]).all() for name in before)
    run.engine.close()

    found["gtopk"], run = _trained(mesh, OWT, exchange=GTopKSettings(density=1, warmup=()))
    run.engine.close()
    for kind, settings in {"owt": OWT, "data": DATA}.items():
        found[f"drawn {kind}"], run = _trained(mesh, settings, dropout=0.5, pieces=2)
        run.engine.close()
    for scheme in ("b", "c"):
        owt = OwtSettings(min_weights=200, scheme=scheme)
        found[scheme], run = _trained(mesh, OWT.model_copy(update={"parallel": owt}))
        found[f"{scheme} sent"] = run.engine.method.links.bytes_sent / FEW
        run.engine.close()
    half = OWT.model_copy(update={"precision": "bf16"})
    found["bf16"], run = _trained(mesh, half)
    found["half sent"] = run.engine.method.links.bytes_sent / FEW
    run.engine.close()
    found["frozen"], run = _trained(mesh, OWT, frozen=FROZEN)
    run.engine.close()
    leave()
    return found


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_ranks(RANKS, _on_four_ranks)
    return found


def _alone(steps: int = STEPS, frozen: tuple[str, ...] = ()) -> Reference:
    net = _net()
    for name in frozen:
        net.get_submodule(name).requires_grad_(False)
    return train_reference(net, _sgd(net), _data, steps)


@pytest.fixture(scope="module")
def alone() -> Reference:
    return _alone()


@pytest.mark.distributed
def test_gradients_are_those_of_one_process(ranks: Any, alone: Reference) -> None:
    for result in ranks:
        assert result["gradients"].keys() == alone.gradients.keys()
        assert_near(result["gradients"], alone.gradients, 1e-5)


@pytest.mark.distributed
def test_weights_after_many_steps_are_those_of_one_process(ranks: Any, alone: Reference) -> None:
    for result in ranks:
        assert_near(result["steps"], alone.weights, 1e-4)


@pytest.mark.distributed
def test_an_exchange_acts_on_what_is_not_split(ranks: Any) -> None:
    expected = _alone(FEW).weights
    for result in ranks:
        assert_near(result["gtopk"], expected, 1e-4)


@pytest.mark.distributed
@pytest.mark.parametrize("scheme", ["b", "c"])
def test_a_batch_in_rounds_is_the_same_batch_at_the_same_bytes(ranks: Any, scheme: str) -> None:
    expected = _alone(FEW).weights
    for result in ranks:
        assert_near(result[scheme], expected, 1e-4)
        assert result[f"{scheme} sent"] == result["sent"][0]


def test_rounds_have_each_image_once() -> None:
    assert rounds_of((3, 0, 2), "b") == [(3, 0, 0), (0, 0, 2)]
    assert rounds_of((3, 1), "c") == [(2, 1), (1, 0)]
    assert rounds_of((1, 1, 0), "c") == [(1, 1, 0)]


@pytest.mark.distributed
def test_half_the_bits_are_half_the_bytes(ranks: Any) -> None:
    expected = _alone(FEW).weights
    for result in ranks:
        assert_near(result["bf16"], expected, 0.1)
        assert result["half sent"] == result["sent"][0] / 2


@pytest.mark.distributed
def test_dropout_and_pieces_of_a_batch_are_those_of_data_parallel_ranks(ranks: Any) -> None:
    for result in ranks:
        expected = {name: torch.from_numpy(v) for name, v in result["drawn data"].items()}
        assert_near(result["drawn owt"], expected, 1e-4)


@pytest.mark.distributed
def test_frozen_layers_stay_and_the_others_learn(ranks: Any) -> None:
    expected = _alone(FEW, FROZEN).weights
    for result in ranks:
        assert_near(result["frozen"], expected, 1e-4)
        assert (result["frozen"]["6.weight"] == _net().state_dict()["6.weight"].numpy()).all()


@pytest.mark.distributed
def test_evaluation_sees_the_whole_network_and_its_average(ranks: Any, alone: Reference) -> None:
    for result in ranks:
        assert_near(result["average"], alone.average.state_dict(), 1e-4)
        assert result["whole"].keys() == _net().state_dict().keys()
        net = _net().eval()
        net.load_state_dict(_tensors(result["whole"]))
        found = torch.from_numpy(result["logits"])
        torch.testing.assert_close(found, net(_data(0)[0]), rtol=1e-5, atol=1e-6)


@pytest.mark.distributed
def test_bytes_and_memory_are_those_of_the_formulas(ranks: Any) -> None:
    wide = {"3": (216, 10), "6": (10, 30), "8": (30, 7)}
    assert "3, 6, 8 are split over 4 ranks" in ranks[0]["said"][0]
    rows = [len(part) for part in torch.arange(IMAGES).tensor_split(RANKS)]
    kept = 162 + 12  # the convolution and the batch norm
    for rank, result in enumerate(ranks):
        own = rows[rank]
        sent = 0
        for values_in, values_out in wide.values():
            columns = [len(part) for part in torch.arange(values_out).tensor_split(RANKS)][rank]
            others = IMAGES - own
            forward = (RANKS - 1) * own * values_in + others * columns
            backward = own * (values_out - columns) + others * values_in
            sent += 4 * (forward + backward)
            assert result["held"][f"{_place(values_in)}.weight"] == columns * values_in
        assert result["sent"] == [sent, 2 * (RANKS - 1) * 4 * kept // RANKS]


def _place(values_in: int) -> str:
    return {216: "3", 10: "6", 30: "8"}[values_in]


@pytest.mark.distributed
def test_a_gradient_that_is_not_finite_on_one_rank_is_taken_by_none(ranks: Any) -> None:
    for result in ranks:
        assert result["taken"] == [False]
        assert result["unchanged"]
