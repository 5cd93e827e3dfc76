"""Attention and MLPs on a cube of ranks (`engine.parallel.kind=tensor3d`), as on one process."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import faults
import pytest
import torch
from faults import Accident
from ranks import run_ranks
from reference_training import Reference, train_reference
from safetensors.torch import load_file
from states import as_arrays, assert_near
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from skindx.core.errors import UserError
from skindx.data.loader.batches import share
from skindx.data.manifest import read_manifest
from skindx.models.classifier.heads import Mlp as MlpHead
from skindx.taxonomy import Taxonomy
from skindx.training.checks import check
from skindx.training.config.engine import EngineSettings
from skindx.training.config.recipe import Ema
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import join
from skindx.training.parallel.mesh import leave, mesh_of_all
from skindx.training.registry import change_network
from skindx.training.tasks.optimizer import WeightAverage
from skindx_bench.forms.cubes import can_be_split
from skindx_bench.forms.tensor3d import Tensor3dSettings
from skindx_methods.split_layers.parts import parts_of

Q, IMAGES, STEPS, FEW = 2, 19, 20, 3
"""Nineteen images on eight ranks: their shares are uneven."""
RANKS, CLASSES, WIDTH, HIDDEN, TOKENS, DEPTH = Q**3, 7, 16, 32, 5, 2
CPU = EngineSettings(accelerator="cpu", gradient_clip=0.5)
SPOILT = "blocks.1.mlp.fc1"


def _net() -> nn.Module:
    torch.manual_seed(0)
    net = VisionTransformer(
        img_size=8, patch_size=4, embed_dim=WIDTH, depth=DEPTH, num_heads=4, mlp_ratio=2
    )
    net.head = MlpHead(WIDTH, HIDDEN, CLASSES)  # seven classes are no multiple of four
    return net


def _data(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(IMAGES, 3, 8, 8, generator=generator), torch.arange(IMAGES) % CLASSES


def _sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([w for w in net.parameters() if w.requires_grad], lr=0.1, momentum=0.9)


class Run:
    """An engine over the network, on a cube or data-parallel."""

    def __init__(
        self,
        *,
        cube: bool = True,
        again: bool = False,
        frozen: str = "",
        **change: Any,
    ) -> None:
        if cube:
            change["parallel"] = Tensor3dSettings(gather_again=again)
        self.mesh = mesh_of_all(torch.device("cpu"), CPU.model_copy(update=change))
        self.net, self.said = _net(), list[str]()
        if frozen:
            self.net.get_submodule(frozen).requires_grad_(False)
        change_network(self.net, self.mesh, torch.zeros(1, 3, 8, 8), IMAGES, self.said.append)
        self.average = WeightAverage(self.net, Ema(decay=0.5, warmup=False))
        self.engine = Engine(self.net, _sgd(self.net), self.mesh, IMAGES)

    def step(self, number: int, *, spoil: bool = False) -> bool:
        inputs, labels = _data(number)
        data, engine = self.mesh.data, self.engine
        own = torch.from_numpy(share(torch.arange(IMAGES).numpy(), data.rank, data.size))
        if spoil and data.rank == 5:
            weight = self.net.get_submodule(SPOILT).weight
            weight.register_hook(lambda grad: grad * float("nan"))
        loss = nn.functional.cross_entropy(engine(inputs[own]), labels[own], reduction="sum")
        engine.backward(loss, IMAGES)
        taken = engine.step(0.1)
        self.average.update(self.net, number + 1)
        return taken

    def sent(self) -> int:
        cubes = {id(part.cube.i): part.cube for part in parts_of(self.net).values()}
        return sum(cube.bytes_sent for cube in cubes.values())

    def weights(self) -> dict[str, Any]:
        return as_arrays(self.engine.state_dict()["weights"])


def _gradients() -> dict[str, Any]:
    run, found = Run(gradient_clip=0.0), {}

    def keep(net: nn.Module) -> None:
        parts = parts_of(net)
        for name, weight in net.named_parameters():
            found[name] = (parts[name].whole if name in parts else Tensor.clone)(
                weight.grad
            ).numpy()

    run.engine.precondition = keep
    run.step(0)
    run.engine.close()
    return found


def _on_eight_ranks() -> dict[str, Any]:
    torch.set_num_threads(1)
    join(CPU)
    found: dict[str, Any] = {"gradients": _gradients()}
    run = Run()
    for number in range(FEW):
        assert run.step(number)
    found["steps"], found["said"] = run.weights(), run.said
    found["held"] = {name: weight.numel() for name, weight in run.net.named_parameters()}
    run.engine.train(False)
    evaluated = run.engine.whole()
    found["whole"], found["logits"] = as_arrays(evaluated.state_dict()), None
    found["logits"] = evaluated(_data(0)[0]).detach().numpy()
    run.engine.train()
    found["average"] = as_arrays(run.average.state_dict())
    before = run.sent()
    run.step(99)
    found["sent"] = run.sent() - before
    before = run.weights()
    found["taken"] = run.step(100, spoil=True)
    after = run.weights()
    found["unchanged"] = all((before[name] == after[name]).all() for name in before)
    run.engine.close()
    leave()
    return found


def _other_steps() -> dict[str, Any]:
    torch.set_num_threads(1)
    join(CPU)
    found, run = dict[str, Any](), Run()
    for number in range(STEPS):
        assert run.step(number)
    found["many"] = run.weights()
    state = run.engine.state_dict()
    run.engine.close()
    for cube in (True, False):
        run = Run(cube=cube)
        run.engine.load_state_dict(deepcopy(state))
        assert run.step(101)
        found["cube" if cube else "data"], after = run.weights(), run.engine.state_dict()
        run.engine.close()
    run = Run()  # from data parallelism back onto the cube
    run.engine.load_state_dict(deepcopy(after))
    found["back"] = run.weights()
    run.engine.close()

    for name, change in {
        "again": {"again": True},
        "bf16": {"precision": "bf16"},
        "frozen": {"frozen": "blocks.0"},
    }.items():
        run = Run(**change)
        for number in range(FEW):
            assert run.step(number)
        found[name] = run.weights()
        before = run.sent()
        run.step(99)
        found[f"{name} sent"] = run.sent() - before
        run.engine.close()
    leave()
    return found


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_ranks(RANKS, _on_eight_ranks)
    return found


@pytest.fixture(scope="module")
def others() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_ranks(RANKS, _other_steps)
    return found


def _alone(steps: int, frozen: str = "") -> Reference:
    net = _net()
    if frozen:
        net.get_submodule(frozen).requires_grad_(False)
    return train_reference(net, _sgd(net), _data, steps)


@pytest.mark.distributed
def test_gradients_are_those_of_one_process(ranks: Any) -> None:
    expected = _alone(1).gradients
    for result in ranks:
        assert result["gradients"].keys() == expected.keys()
        assert_near(result["gradients"], expected, 1e-5, 1e-9)


@pytest.mark.distributed
def test_weights_and_average_after_some_steps_are_those_of_one_process(ranks: Any) -> None:
    reference = _alone(FEW)
    for result in ranks:
        assert_near(result["steps"], reference.weights, 1e-4, 1e-9)
        assert_near(result["average"], reference.average.state_dict(), 1e-4, 1e-9)


@pytest.mark.distributed
def test_evaluation_sees_the_whole_network(ranks: Any) -> None:
    for result in ranks:
        net = _net().eval()
        net.load_state_dict({name: torch.from_numpy(v) for name, v in result["whole"].items()})
        found = torch.from_numpy(result["logits"])
        torch.testing.assert_close(found, net(_data(0)[0]), rtol=1e-5, atol=1e-6)


def _values(again: bool) -> int:
    """Return what a rank sends in a step: two products and two borders of each block."""
    images = RANKS * -(-IMAGES // RANKS)  # shares are filled up with zeros
    total = 0
    for rows, into, hidden, out in (
        *[(images * TOKENS, WIDTH, 3 * WIDTH, WIDTH)] * DEPTH,  # attention
        *[(images * TOKENS, WIDTH, HIDDEN, WIDTH)] * DEPTH,
        (images, WIDTH, HIDDEN, CLASSES + 1),
    ):
        middle = into if hidden == 3 * into else hidden
        for n, k in ((into, hidden), (middle, out)):
            once = rows * n + k * n
            total += (2 * (once + rows * k) + again * once) * (Q - 1) // Q**3
        total += 2 * (Q - 1) * rows * (into + out) // Q**4
    return total


@pytest.mark.distributed
def test_bytes_and_memory_are_those_of_the_formulas(ranks: Any) -> None:
    assert "blocks.0.attn" in ranks[0]["said"][0]
    whole = {name: weight.numel() for name, weight in _net().named_parameters()}
    for result in ranks:
        assert result["sent"] == 4 * _values(again=False)
        for name in ("blocks.0.attn.qkv", "blocks.1.attn.proj", "blocks.0.mlp.fc1", "head.fc1"):
            assert result["held"][f"{name}.weight"] == whole[f"{name}.weight"] // RANKS
            assert result["held"][f"{name}.bias"] == whole[f"{name}.bias"]
        assert result["held"]["head.fc2.weight"] == (CLASSES + 1) * HIDDEN // RANKS


@pytest.mark.distributed
def test_a_gradient_that_is_not_finite_on_one_rank_is_taken_by_none(ranks: Any) -> None:
    for result in ranks:
        assert result["taken"] is False
        assert result["unchanged"]


@pytest.mark.long
@pytest.mark.distributed
def test_weights_after_many_steps_are_those_of_one_process(others: Any) -> None:
    expected = _alone(STEPS).weights
    for result in others:
        assert_near(result["many"], expected, 1e-4, 1e-9)


@pytest.mark.long
@pytest.mark.distributed
def test_a_state_goes_on_under_data_parallelism_and_back(others: Any) -> None:
    for result in others:
        on_data = {name: torch.from_numpy(v) for name, v in result["data"].items()}
        assert_near(result["cube"], on_data, 1e-4, 1e-9)
        assert_near(result["back"], on_data, 0, 1e-9)


@pytest.mark.long
@pytest.mark.distributed
@pytest.mark.parametrize(("name", "relative"), [("again", 1e-4), ("bf16", 0.1), ("frozen", 1e-4)])
def test_what_changes_a_step_changes_it_as_on_one_process(
    others: Any, name: str, relative: float
) -> None:
    expected = _alone(FEW, "blocks.0" if name == "frozen" else "").weights
    for result in others:
        assert_near(result[name], expected, relative, 1e-9)
        assert result["again sent"] == 4 * _values(again=True)
        assert result["bf16 sent"] == 2 * _values(again=False)


def test_widths_that_do_not_split_and_ranks_that_are_no_cube_are_left_or_refused() -> None:
    blocks = {name: block for name, block in _net().named_modules() if can_be_split(block, Q)}
    assert list(blocks)[:2] == ["blocks.0.attn", "blocks.0.mlp"]
    assert "head" in blocks
    assert not any(can_be_split(block, 3) for block in _net().modules())
    with pytest.raises(UserError, match="side=2 makes a cube of 8 ranks, and there are 4"):
        Tensor3dSettings().check_ranks(4)


def _settings(kind: str, **change: Any) -> TrainSettings:
    engine = {"accelerator": "cpu", "timeout_s": 60, "parallel": {"kind": kind}, **change}
    return TrainSettings.parse(
        {
            "recipe": {"epochs": 1, "batch": 18, "optimizer": "sgd", "ema": {"decay": 0.9}},
            "members": [{"name": "a", "model": "test_vit", "preprocess": {"size": 64}}],
            "loader": {"threads": 1},
            "checkpoint": {"every_steps": 2},
            "engine": engine,
        }
    )


def _weights(run: Path) -> dict[str, Tensor]:
    return load_file(run / "members" / "a" / "model.safetensors")


@pytest.mark.long
@pytest.mark.distributed
def test_a_killed_training_on_a_cube_goes_on_without_it_and_the_other_way(
    small_dataset: Path, tmp_path: Path
) -> None:
    data, cube = _settings("data"), _settings("tensor3d")
    whole = tmp_path / "whole"
    assert faults.wait(faults.start(8, whole, small_dataset, data)) == [0] * 8
    for first, second in ((cube, data), (data, cube)):
        run = tmp_path / first.engine.parallel.kind
        ranks = faults.start(8, run, small_dataset, first, Accident("kill", 3))
        assert -9 in faults.wait(ranks)
        assert faults.wait(faults.start(8, run, small_dataset, second)) == [0] * 8
        assert "0 of 1 epochs and 2 steps done" in faults.printed(run, 0)
        for name, value in _weights(whole).items():
            torch.testing.assert_close(_weights(run)[name], value, rtol=1e-3, atol=1e-4)


def test_a_network_that_cannot_be_split_so_is_refused_before_a_run_begins(
    small_dataset: Path,
) -> None:
    taxonomy = Taxonomy.load(small_dataset / "taxonomy.yaml")
    said = "side=2 makes a cube of 8 ranks, and there are 2"
    with pytest.raises(UserError, match=said) as caught:
        check(_settings("tensor3d", ranks=2), read_manifest(small_dataset), taxonomy)
    assert "\n" not in str(caught.value)


def test_ranks_that_train_apart_hold_whole_networks() -> None:
    with pytest.raises(UserError, match=r"engine\.parallel\.kind=tensor3d splits layers"):
        TrainSettings.parse(
            {"exchange": {"kind": "local"}, "engine": {"parallel": {"kind": "tensor3d"}}}
        )
