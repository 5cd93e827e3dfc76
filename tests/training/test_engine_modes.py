"""One group of two ranks trains under every mode of the engine; what they become is compared."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from ranks import run_ranks
from torch import Tensor, nn

from skindx.core.errors import UserError
from skindx.data.loader.batches import global_batches, share
from skindx.training.config.engine import (
    EngineSettings,
    deepspeed_config,
    read_extra,
    read_extra_of,
)
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.extra_settings import check_extra
from skindx.training.deepspeed.ranks import join
from skindx.training.parallel.batch_norm import checkpoint_activations
from skindx.training.parallel.mesh import Mesh, check_precision, leave, resolve_ranks

MODES: dict[str, dict[str, Any]] = {
    **{f"zero {stage}": {"zero": stage} for stage in range(4)},
    **{f"zero {stage}, two parts": {"zero": stage} for stage in range(4)},
    "channels last": {"channels_last": True},
    "bf16, zero 2": {"zero": 2, "precision": "bf16"},
}
NORMS: dict[str, dict[str, Any]] = {
    "own": {},
    "checkpointed": {"activation_checkpointing": True},
    "synchronised": {"sync_batch_norm": True},
    "synchronised, checkpointed": {"sync_batch_norm": True, "activation_checkpointing": True},
}
COUNT, BATCH = 19, 6  # steps of 6 or 7 images: the ranks' shares are uneven


def _frozen_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8).requires_grad_(False).eval(),
        nn.Flatten(),
        nn.Linear(8 * 14 * 14, 3),
    )


class _Skipping(nn.Module):
    """Passes a layer by for batches whose first number is 7."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.some, self.last = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).relu()
        passed_by = bool(inputs[0, 0] == 7)
        outputs: Tensor = self.last(hidden if passed_by else self.some(hidden).relu())
        return outputs


def _skipping_inputs(step: int, piece: int, rank: int) -> Tensor:
    """The layer is passed by in the first part of step 2, and in all of steps 3 and 4."""
    generator = torch.Generator().manual_seed(100 * step + 10 * piece + rank)
    inputs = torch.randn(2, 6, generator=generator)
    if (step, piece) == (2, 0) or step in (3, 4):
        inputs[:, 0] = 7
    return inputs


def _skipped(mesh: Mesh) -> dict[str, np.ndarray]:
    model = _Skipping()
    engine = Engine(model, _optimizer(model), mesh, 8)
    for step in range(6):
        for piece in range(2):
            outputs = engine(_skipping_inputs(step, piece, mesh.data.rank))
            engine.backward(outputs.square().sum(), 8, last=piece == 1)
        engine.step(0.01)
    result = {name: value.numpy().copy() for name, value in engine.full_state().items()}
    engine.close()
    return result


def _skipped_plainly() -> dict[str, Tensor]:
    model = _Skipping()
    optimizer = _optimizer(model)
    for step in range(6):
        optimizer.zero_grad(set_to_none=False)
        for piece, rank in ((0, 0), (0, 1), (1, 0), (1, 1)):
            (model(_skipping_inputs(step, piece, rank)).square().sum() / 8).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.state_dict()


def _timm() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_efficientnet", num_classes=3)  # has timm's BatchNormAct2d


def _data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(COUNT, 3, 16, 16, generator=generator), torch.arange(COUNT) % 3


def _steps() -> list[np.ndarray]:
    return [batch for epoch in range(2) for batch in global_batches(COUNT, BATCH, 0, epoch)]


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, but SGD where gradients that are zero but for rounding would get its full steps."""
    if isinstance(model, nn.Sequential | _Skipping):
        *body, weight, bias = model.parameters()
        head = {"params": [weight, bias], "lr": 0.03, "lr_scale": 3.0}
        return torch.optim.AdamW([{"params": body}, head], 0.01)
    return torch.optim.SGD(model.parameters(), 0.01)


def _engine_result(model: nn.Module, mesh: Mesh, parts: int) -> dict[str, np.ndarray]:
    """Train two epochs, each step in `parts` backward calls."""
    inputs, labels = _data()
    engine = Engine(model, _optimizer(model), mesh, BATCH)
    for batch in _steps():
        own = torch.from_numpy(share(batch, mesh.data.rank, mesh.data.size))
        pieces = own.tensor_split(parts)
        for number, piece in enumerate(pieces, start=1):
            outputs = engine(inputs[piece]).float()
            loss = nn.functional.cross_entropy(outputs, labels[piece], reduction="sum")
            engine.backward(loss, len(batch), last=number == parts)
        engine.step(0.01)
    result = {name: value.numpy().copy() for name, value in engine.full_state().items()}
    # As validation has it: uneven numbers of batches, which no collective may wait for.
    engine.train(False)
    whole = engine.whole()
    for _ in range(1 + mesh.data.rank):
        result["answer"] = whole(inputs).detach().numpy()
    engine.close()
    return result


def _all_modes(folder: str) -> dict[str, Any]:
    first = join(EngineSettings(accelerator="cpu", timeout_s=100))
    small = Path(folder) / "stage3.json"  # else weights as small as these stay on every rank

    def mesh(**change: Any) -> Mesh:
        extra = {"deepspeed": small} if change.get("zero") == 3 else {}
        settings = EngineSettings(accelerator="cpu", **change, **extra)
        return Mesh(first.data, first.device, settings)

    results = {
        name: _engine_result(_frozen_norm(), mesh(**change), 2 if "two" in name else 1)
        for name, change in MODES.items()
    }
    for name, change in NORMS.items():
        results[name] = _engine_result(_timm(), mesh(**change), 1)
    for stage in (0, 3):
        results[f"zero {stage}, skipping"] = _skipped(mesh(zero=stage))
    reported = first.broadcast_from_main(lambda: f"rank {first.data.rank}")
    try:
        first.broadcast_from_main(_refuse)
    except UserError as error:
        reported += f", {error}"
    leave()
    return results | {"told": reported}


def _refuse() -> None:
    raise UserError("no")


def _one_process(model: nn.Module) -> dict[str, Tensor]:
    inputs, labels = _data()
    optimizer = _optimizer(model)
    for batch in _steps():
        optimizer.zero_grad()
        own = torch.from_numpy(batch)
        nn.functional.cross_entropy(model(inputs[own]), labels[own]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.state_dict()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("modes")
    zero = {"stage3_param_persistence_threshold": 0}
    (folder / "stage3.json").write_text(json.dumps({"zero_optimization": zero}))
    return run_ranks(2, _all_modes, str(folder), timeout_s=280)


def _assert_close(found: dict[str, np.ndarray], wanted: dict[str, Any], tolerance: float) -> None:
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.distributed
@pytest.mark.parametrize("mode", [mode for mode in MODES if "bf16" not in mode])
def test_stages_and_accumulation_equal_one_plain_process(
    ranks: list[dict[str, Any]], mode: str
) -> None:
    plain = _one_process(_frozen_norm())
    for rank in ranks:
        _assert_close(rank[mode], plain, 1e-5)
        _assert_close(rank[mode], {"answer": ranks[0]["zero 0"]["answer"]}, 1e-4)


@pytest.mark.distributed
@pytest.mark.parametrize("stage", [0, 3])
def test_a_layer_that_a_step_does_not_reach_has_a_gradient_of_zeros(
    ranks: list[dict[str, Any]], stage: int
) -> None:
    """Not the last one that it had, which ZeRO 3 keeps."""
    for rank in ranks:
        _assert_close(rank[f"zero {stage}, skipping"], _skipped_plainly(), 1e-6)


@pytest.mark.distributed
def test_half_precision_follows(ranks: list[dict[str, Any]]) -> None:
    _assert_close(ranks[1]["bf16, zero 2"], ranks[0]["zero 0"], 0.1)
    assert ranks[0]["bf16, zero 2"]["0.weight"].dtype == np.float32


@pytest.mark.distributed
@pytest.mark.parametrize("mode", ["synchronised", "synchronised, checkpointed"])
def test_synchronised_norms_equal_one_process(ranks: list[dict[str, Any]], mode: str) -> None:
    plain = {name: value.numpy() for name, value in _one_process(_timm()).items()}
    for rank in ranks:
        _assert_close(rank[mode], plain, 1e-5)
    assert not np.allclose(ranks[0]["own"]["bn1.running_mean"], plain["bn1.running_mean"])


@pytest.mark.distributed
def test_checkpointing_changes_nothing(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        _assert_close(rank["checkpointed"], rank["own"], 1e-6)
        assert rank["checkpointed"]["bn1.num_batches_tracked"] == len(_steps())


@pytest.mark.distributed
def test_the_first_rank_tells_all(ranks: list[dict[str, Any]]) -> None:
    assert [rank["told"] for rank in ranks] == ["rank 0, no"] * 2


def test_what_no_network_or_device_can_do_is_one_sentence() -> None:
    with pytest.raises(UserError, match="precision=fp16 works only on a GPU"):
        check_precision(EngineSettings(precision="fp16"), "cpu")
    with pytest.raises(UserError, match="precision=fp16 works only on a GPU"):
        resolve_ranks(EngineSettings(accelerator="cpu", precision="fp16"))
    check_precision(EngineSettings(precision="fp16"), "cuda")
    with pytest.raises(UserError, match="Linear cannot recompute its activations"):
        checkpoint_activations(nn.Linear(2, 2))
    for change in ({"zero": 3}, {"activation_checkpointing": True}):
        with pytest.raises(UserError, match="compile"):
            EngineSettings.parse({"compile": True, **change})
    with pytest.raises(UserError, match="channels_last does not work with ZeRO"):
        EngineSettings.parse({"channels_last": True, "zero": 1})


def test_extra_deepspeed_settings_lie_below_ours(tmp_path: Path) -> None:
    file = tmp_path / "extra.json"
    file.write_text('{"wall_clock_breakdown": true, "zero_optimization": {"overlap_comm": false}}')
    config = deepspeed_config(EngineSettings(deepspeed=file, zero=2), 9, 2)
    assert config["wall_clock_breakdown"] is True
    assert config["zero_optimization"] == {"overlap_comm": False, "stage": 2}
    assert config["train_batch_size"] == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"bf16": {"enabled": true}}', "has the key 'bf16', which engine.precision sets"),
        (
            '{"zero_optimization": {"stage": 1}}',
            r"key 'zero_optimization\.stage', which engine\.zero",
        ),
        ('{"optimizer": {}}', "key 'optimizer'"),
        ("[]", "must contain a JSON object"),
        ('{"zero_optimization": 3}', "must have an object, {...}, for 'zero_optimization'"),
        ('{"tensor_parallel": {"autotp_size": 2}}', "which engine.parallel"),
        ("{", "is not valid JSON"),
    ],
)
def test_deepspeed_settings_that_are_ours_are_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "extra.json"
    file.write_text(text)
    with pytest.raises(UserError, match=said):
        read_extra(file)
    with pytest.raises(UserError, match=said):
        read_extra_of(EngineSettings(accelerator="cpu", deepspeed=file))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"zero_optimization": {"reduce_bucket_size": "x"}}',
            "'reduce_bucket_size' is 'x', and DeepSpeed says: input should be a valid integer",
        ),
        ('{"zero_optimization": {"reduce_bucket_sise": 1}}', "'reduce_bucket_sise' is '1', and "),
        ('{"communication_data_type": "fp99"}', "Invalid communication_data_type"),
        ('{"activation_checkpointing": 3}', "a value is of another kind"),
        ('{"prescale_gradients": "x"}', "'prescale_gradients' is 'x', but must be true or false"),
        ('{"gradient_predivide_factor": "x"}', "must be a number"),
        ('{"steps_per_print": 0.5}', "must be a whole number"),
        (
            '{"prescale_gradient": true}',
            r"the key 'prescale_gradient', which DeepSpeed does not know; did you mean",
        ),
        ('{"prescale_gradients": true, "gradient_predivide_factor": 2, "aio": {}}', ""),
    ],
)
def test_a_json_that_deepspeed_refuses_or_misses_is_one_sentence(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "extra.json"
    file.write_text(text)
    with pytest.raises(UserError, match=said) if said else nullcontext() as caught:
        check_extra(EngineSettings(accelerator="cpu", zero=2, deepspeed=file))
    assert "\n" not in str(caught)
