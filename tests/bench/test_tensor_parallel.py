"""Split attention and MLPs (`engine.parallel.kind=tensor`) compute what one process does."""

from typing import Any

import pytest
import torch
from ranks import run_ranks
from reference_training import Reference, train_reference
from states import assert_near
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from skindx.core.errors import UserError
from skindx.data.loader.batches import share
from skindx.training.config.engine import EngineSettings
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import join
from skindx.training.methods.sharding.parts import parts_of
from skindx.training.parallel.mesh import Mesh, leave, mesh_of_all
from skindx.training.registry import change_network
from skindx_bench.forms.form_settings import TensorSettings

RANKS, IMAGES, STEPS, FEW = 4, 11, 20, 3
CPU = EngineSettings(accelerator="cpu", gradient_clip=0.5)
WIDTH, HEADS, TOKENS = 16, 4, 5


def _net(**change: Any) -> nn.Module:
    torch.manual_seed(0)
    return VisionTransformer(
        img_size=8,
        patch_size=4,
        embed_dim=WIDTH,
        depth=2,
        num_heads=HEADS,
        mlp_ratio=2,
        num_classes=7,
        **change,
    )


def _data(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(IMAGES, 3, 8, 8, generator=generator), torch.arange(IMAGES) % 7


def _sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


class Run:
    """An engine over the network in groups of so many ranks."""

    def __init__(
        self,
        size: int,
        *,
        clip: float = 0.5,
        again: bool = False,
        precision: str = "fp32",
        **change: Any,
    ) -> None:
        own = {"gradient_clip": clip, "activation_checkpointing": again, "precision": precision}
        settings = CPU.model_copy(update={"parallel": TensorSettings(size=size), **own})
        self.mesh, self.said = mesh_of_all(torch.device("cpu"), settings), list[str]()
        self.net = _net(**change)
        change_network(self.net, self.mesh, torch.zeros(1, 3, 8, 8), IMAGES, self.said.append)
        self.engine = Engine(self.net, _sgd(self.net), self.mesh, IMAGES)

    def step(self, number: int, *, spoil: bool = False) -> bool:
        inputs, labels = _data(number)
        data, engine = self.mesh.data, self.engine
        own = torch.from_numpy(share(torch.arange(IMAGES).numpy(), data.rank, data.size))
        torch.manual_seed(100 * number + data.rank)
        if spoil and data.rank == 2:
            weight = self.net.blocks[0].mlp.fc1.weight
            weight.register_hook(lambda grad: grad * float("nan"))
        loss = nn.functional.cross_entropy(engine(inputs[own]), labels[own], reduction="sum")
        engine.backward(loss, IMAGES)
        return engine.step(0.1)

    def held(self) -> dict[str, Any]:
        """Return what this rank holds of the weights that all hold alike."""
        parts = parts_of(self.net)
        named = self.net.named_parameters()
        return {name: w.detach().numpy().copy() for name, w in named if name not in parts}

    def whole(self) -> dict[str, Any]:
        weights = self.engine.state_dict()["weights"]
        return {name: value.detach().clone().numpy() for name, value in weights.items()}


def _gradients() -> dict[str, Any]:
    run, found = Run(2, clip=0.0), {}

    def keep(net: nn.Module) -> None:
        parts = parts_of(net)
        for name, weight in net.named_parameters():
            whole = parts[name].whole(weight.grad) if name in parts else weight.grad.clone()
            found[name] = whole.numpy()

    run.engine.precondition = keep
    run.step(0)
    run.engine.close()
    return found


def _state(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _state(each) for key, each in value.items()}
    return value.detach().clone() if isinstance(value, Tensor) else value


def _on_four_ranks() -> dict[str, Any]:
    join(CPU)
    found: dict[str, Any] = {"gradients": _gradients()}
    for size, steps in ((2, STEPS), (4, FEW)):
        run = Run(size)
        for number in range(steps):
            assert run.step(number)
        found[f"steps {size}"], found[f"held {size}"] = run.whole(), run.held()
        if size == 4:
            run.engine.close()
            continue
        found["said"] = run.said
        found["weights"] = sum(weight.numel() for weight in run.net.parameters())
        found["evaluated"] = run.engine.train(False) or run.engine.whole()(_data(0)[0]).tolist()
        run.engine.train()
        links, sync = run.engine.method.links, run.engine._sync
        before = links.bytes_sent, sync.fabric.bytes_sent
        run.step(99)
        found["sent"] = [links.bytes_sent - before[0], sync.fabric.bytes_sent - before[1]]
        found["elements"] = len(sync.gradients.flat)

        held = run.whole()
        found["taken"] = run.step(100, spoil=True)
        found["unchanged"] = all((held[name] == value).all() for name, value in run.whole().items())
        state = _state(run.engine.state_dict())
        run.engine.close()
        # Its state goes on in larger groups.
        other = Run(4)
        other.engine.load_state_dict(state)
        loaded = other.whole()
        found["loaded"] = all((held[name] == value).all() for name, value in loaded.items())
        assert other.step(101)
        other.engine.close()

    run = Run(2, precision="bf16")
    for number in range(FEW):
        assert run.step(number)
    found["bf16"], found["held bf16"] = run.whole(), run.held()
    run.engine.close()
    run = Run(2, again=True)
    for number in range(FEW):
        assert run.step(number)
    found["again"] = run.whole()
    run.engine.close()
    run = Run(2, drop_rate=0.3, drop_path_rate=0.3, proj_drop_rate=0.2)
    for number in range(FEW):
        assert run.step(number)
    found["drawn"], found["drawn said"] = run.held(), run.said
    run.engine.close()
    leave()
    return found


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_ranks(RANKS, _on_four_ranks)
    return found


def _alone(steps: int) -> Reference:
    net = _net()
    return train_reference(net, _sgd(net), _data, steps)


@pytest.mark.distributed
def test_gradients_are_those_of_one_process(ranks: Any) -> None:
    expected = _alone(1).gradients
    for result in ranks:
        assert result["gradients"].keys() == expected.keys()
        assert_near(result["gradients"], expected, 1e-5, 1e-7)


@pytest.mark.distributed
@pytest.mark.parametrize(("what", "steps"), [("steps 2", STEPS), ("steps 4", FEW), ("again", FEW)])
def test_weights_after_many_steps_are_those_of_one_process(
    ranks: Any, what: str, steps: int
) -> None:
    net = _alone(steps).net
    for result in ranks:
        assert_near(result[what], net.state_dict(), 1e-4, 1e-7)
    if what == "steps 2":
        logits = net.eval()(_data(0)[0])
        torch.testing.assert_close(
            torch.tensor(ranks[3]["evaluated"]), logits, rtol=1e-3, atol=1e-4
        )


@pytest.mark.distributed
@pytest.mark.parametrize("what", ["held 2", "held 4", "held bf16", "drawn"])
def test_what_ranks_hold_alike_stays_alike_to_the_bit(ranks: Any, what: str) -> None:
    for result in ranks[1:]:
        for name, value in ranks[0][what].items():
            assert (result[what][name] == value).all(), name


@pytest.mark.distributed
def test_half_the_bits_follow_the_whole_ones(ranks: Any) -> None:
    net = _alone(FEW).net
    for result in ranks:
        for name in ("head.weight", "blocks.0.attn.qkv.weight", "blocks.1.mlp.fc2.weight"):
            assert_near({name: result["bf16"][name]}, net.state_dict(), 0.1, 1e-7)


@pytest.mark.distributed
def test_dropout_inside_a_block_keeps_it_whole(ranks: Any) -> None:
    assert "blocks.0.attn, blocks.1.attn are split over 2 ranks" in ranks[0]["drawn said"][0]


@pytest.mark.distributed
def test_bytes_and_memory_are_those_of_the_formulas(ranks: Any) -> None:
    net = _net()
    split = sum(
        weight.numel()
        for name, weight in net.named_parameters()
        if ".qkv." in name or ".fc1." in name or name.endswith(("proj.weight", "fc2.weight"))
        if name.startswith("blocks")
    )
    every = sum(weight.numel() for weight in net.parameters())
    rows = [len(part) for part in torch.arange(IMAGES).tensor_split(RANKS)]
    for rank, result in enumerate(ranks):
        assert result["weights"] == result["elements"] == every - split // 2
        group = rows[rank - rank % 2] + rows[rank - rank % 2 + 1]
        blocks = 2 * 2  # attention and MLP of two
        sums = blocks * 2 * 4 * group * TOKENS * WIDTH  # 2 (P - 1) / P is 1 for a pair
        border = 4 * rows[rank] * (3 * 8 * 8 + 7)  # images in, gradients of outputs back
        assert result["sent"] == [sums + border, 4 * result["elements"]]


@pytest.mark.distributed
def test_a_step_that_is_not_finite_on_one_rank_is_taken_by_none(ranks: Any) -> None:
    for result in ranks:
        assert result["taken"] is False
        assert result["unchanged"]


@pytest.mark.distributed
def test_a_state_goes_on_in_other_groups(ranks: Any) -> None:
    assert all(result["loaded"] for result in ranks)


def test_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match=r"parallel.size=3 must divide .* is 4"):
        TensorSettings(size=3).group_size(4)
    engine = {"parallel": {"kind": "tensor"}}
    with pytest.raises(UserError, match="take one of dense, fused, multicolor"):
        TrainSettings.parse({"engine": engine, "exchange": {"kind": "gtopk"}})
    assert Mesh.tensor.size == 1
