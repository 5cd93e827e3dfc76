"""The checks that every exchange passes, for `exchange.kind: factored`."""

from typing import Any

import pytest
from device_exchanges import assert_same, updates
from engine_exchanges import Runs, all_kinds, assert_same_on_all, assert_trained_as_dense
from exchanges import assert_consistent, assert_mean, every_kind, left_alone
from ranks import run_ranks

from skindx.comm.dense import DenseSettings
from skindx.core.errors import UserError
from skindx.training.config.run import TrainSettings
from skindx_methods.factored.factored import FactoredSettings

SMALL = FactoredSettings(least_mb=0.001, bucket_mb=0.001)


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, 3, 4])
def test_it_gives_the_mean_and_ranks_agree(world: int) -> None:
    for result in run_ranks(world, every_kind, {"factored": SMALL}, timeout_s=240):
        # A product of factors is not rounded to bf16, as each rank's own gradient is.
        assert_mean("factored", result["factored"], bf16=2e-3)
        assert_consistent("factored", result["factored"])


@pytest.mark.distributed
def test_the_others_do_not_wait_for_a_rank_that_is_gone() -> None:
    reported = run_ranks(3, left_alone, SMALL, timeout_s=60)
    assert all(message not in {"", "nobody noticed"} for message in reported[:2])


@pytest.mark.distributed
@pytest.mark.parametrize("world", [2, 3])
def test_an_engine_trains_with_it_as_with_deepspeed(world: int) -> None:
    kinds = {"dense": DenseSettings(), "factored": FactoredSettings(least_mb=0.001, bucket_mb=5e-4)}
    precisions = ["fp32", "bf16"] if world == 2 else ["fp32"]
    ranks: list[Runs] = run_ranks(world, all_kinds, kinds, precisions)
    assert_same_on_all(ranks)
    for result in ranks:
        for key, run in result.items():
            # A product of factors is not rounded to bf16 as DeepSpeed's gradient is.
            near = 5e-3 if key[:2] == ("factored", "bf16") else 2e-4
            assert_trained_as_dense(key, run, result["dense", *key[1:]], near)


@pytest.mark.gpu
@pytest.mark.distributed
@pytest.mark.parametrize("world", [1, 2])
def test_a_device_makes_the_same_of_it(device: str, world: int) -> None:
    """Two ranks share the device; one alone works under the device's own backend."""
    backend = "nccl" if device == "cuda" and world == 1 else "gloo"
    kinds = {"factored": FactoredSettings(least_mb=0.001)}
    ranks = run_ranks(world, updates, device, backend, kinds, ["factored"], device=device)
    assert_same(ranks, {"factored": 1e-5})


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"engine": {"compile": True}}, r"exchange\.kind=factored works"),
        ({"engine": {"precision": "fp16"}}, r"exchange\.kind=factored works"),
        ({"recipe": {"preconditioner": {"kind": "kfac"}}}, r"set exchange\.kind=fused"),
    ],
)
def test_a_training_whose_layers_it_cannot_watch_is_refused(
    change: dict[str, Any], reported: str
) -> None:
    members = [{"name": "a", "model": "test_resnet", "preprocess": {"size": 64}}]
    with pytest.raises(UserError, match=reported) as refused:
        TrainSettings.parse({"members": members, "exchange": {"kind": "factored"}, **change})
    assert "\n" not in str(refused.value)
