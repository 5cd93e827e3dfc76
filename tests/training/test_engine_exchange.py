import pytest
import torch
from engine_exchanges import CPU, Net, Runs, all_kinds, assert_same_on_all, assert_trained_as_dense
from ranks import run_ranks
from torch import nn

from skindx.comm.dense import DenseSettings
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.fused import FusedSettings
from skindx.comm.gtopk import GTopKSettings
from skindx.comm.hierarchical import HierarchicalSettings
from skindx.comm.multicolor import MulticolorSettings
from skindx.comm.powersgd import PowerSGDSettings
from skindx.comm.topk import TopKSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import join
from skindx.training.parallel.mesh import leave

EXACT: dict[str, ExchangeSettings] = {
    "dense": DenseSettings(),
    "fused": FusedSettings(tune=False, bucket_mb=0.0005),
    "hierarchical": HierarchicalSettings(ranks_per_node=1, bucket_mb=0.0005, chunks=2),
    "multicolor": MulticolorSettings(bucket_mb=0.0005),
    "topk": TopKSettings(density=1, warmup=()),
    "gtopk": GTopKSettings(density=1, warmup=()),
}
COMPRESSED: dict[str, ExchangeSettings] = {
    "topk, few": TopKSettings(density=0.05, warmup=()),
    "gtopk, few": GTopKSettings(density=0.05, warmup=()),
    "powersgd": PowerSGDSettings(rank=1),
}
KINDS = {**EXACT, **COMPRESSED}


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.long)])
def ranks(request: pytest.FixtureRequest) -> list[Runs]:
    precisions = ["fp32", "bf16"] if request.param == 2 else ["fp32"]
    found: list[Runs] = run_ranks(request.param, all_kinds, KINDS, precisions)
    return found


@pytest.mark.distributed
def test_exact_kinds_train_as_deepspeed_does(ranks: list[Runs]) -> None:
    for result in ranks:
        for key, run in result.items():
            if key[0] in EXACT:
                assert_trained_as_dense(key, run, result["dense", *key[1:]])


@pytest.mark.distributed
def test_all_ranks_hold_the_same_weights_and_take_no_gradient_that_is_not_finite(
    ranks: list[Runs],
) -> None:
    assert_same_on_all(ranks)


def _to_signs(module: nn.Module) -> None:
    for weight in module.parameters():
        if weight.grad is not None:
            weight.grad.sign_()


def _preconditioned() -> dict[str, list[float]]:
    """One step on the signs of the gradient; return the distinct lengths that weights moved by."""
    mesh, moved = join(CPU), {}
    for name in ("dense", "fused"):
        net = Net()
        before = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
        engine = Engine(net, torch.optim.SGD(net.parameters()), mesh, 8, exchange=EXACT[name])
        engine.precondition = _to_signs
        generator = torch.Generator().manual_seed(mesh.data.rank)
        outputs = engine(torch.randn(4, 3, 5, 5, generator=generator))
        engine.backward(outputs.square().sum(), 4 * mesh.data.size)
        assert engine.step(1.0)
        after = nn.utils.parameters_to_vector(net.parameters()).detach()
        engine.close()
        moved[name] = [float((after - before).norm()), *(after - before).abs().aminmax()]
    leave()
    return {name: [float(length) for length in lengths] for name, lengths in moved.items()}


@pytest.mark.distributed
def test_a_preconditioner_stands_between_reduction_and_clipping() -> None:
    for result in run_ranks(2, _preconditioned):
        for whole, least, most in result.values():
            assert whole == pytest.approx(CPU.gradient_clip, rel=1e-3)
            assert least == 0  # the unused parameter
            assert most == pytest.approx(CPU.gradient_clip / 6957**0.5, rel=0.01)
