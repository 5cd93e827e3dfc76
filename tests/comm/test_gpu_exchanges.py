"""Gradient exchanges on a GPU give what they give on a CPU, and so does their selection."""

import pytest
import torch
from device_exchanges import assert_same, updates
from ranks import run_ranks

from skindx.comm.exchange_kinds import EXCHANGES
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.fused import FusedSettings
from skindx.comm.gtopk import GTopKSettings
from skindx.comm.hierarchical import HierarchicalSettings
from skindx.comm.multicolor import MulticolorSettings
from skindx.comm.powersgd import PowerSGDSettings
from skindx.comm.sparse_exchange import Sparse, add_all, add_and_select, largest, merge
from skindx.comm.topk import TopKSettings

pytestmark = pytest.mark.gpu

KINDS: dict[str, ExchangeSettings] = {
    "fused": FusedSettings(tune=False),
    "fused, bf16 on the wire": FusedSettings(tune=False, wire="bf16"),
    "topk": TopKSettings(density=0.1, warmup=(0.5,)),
    "topk, momentum": TopKSettings(density=0.1, warmup=(), momentum=0.9),
    "gtopk": GTopKSettings(density=0.1, warmup=()),
    "hierarchical": HierarchicalSettings(ranks_per_node=1, chunks=2),
    "multicolor": MulticolorSettings(chunks=2),
    "powersgd": PowerSGDSettings(rank=2),
}
ROUNDED = {"powersgd": 1e-3, "fused, bf16 on the wire": 1e-3}


def test_every_kind_is_tried() -> None:
    kinds = {settings.kind for settings in KINDS.values()}
    assert kinds == set(EXCHANGES) - EXCHANGES.added.keys() - {"dense"}


@pytest.mark.distributed
def test_two_ranks_that_share_the_device(device: str) -> None:
    assert_same(run_ranks(2, updates, device, "gloo", KINDS, device=device), ROUNDED)


@pytest.mark.distributed
def test_one_rank_under_the_devices_own_backend(device: str) -> None:
    backend = "nccl" if device == "cuda" else "gloo"
    assert_same(run_ranks(1, updates, device, backend, KINDS, device=device), ROUNDED)


@pytest.mark.parametrize("size", [1000, 300_000])
@pytest.mark.parametrize("density", [0.001, 0.3, 1.0])
def test_the_same_elements_are_selected(device: str, size: int, density: float) -> None:
    generator = torch.Generator().manual_seed(size)
    gradient_M, residual_M = torch.randn(2, size, generator=generator)
    k = max(1, int(density * size))
    here = add_and_select(gradient_M.clone(), residual_M, k)
    there = add_and_select(gradient_M.to(device), residual_M.to(device), k)
    assert here is not None
    assert there is not None
    _same(there, here)


def test_what_is_not_finite_is_found(device: str) -> None:
    for bad in (float("nan"), float("inf")):
        gradient_M = torch.ones(500, device=device)
        gradient_M[77] = bad
        assert add_and_select(gradient_M, torch.zeros(500, device=device), 5) is None


def test_sums_of_sparse_vectors_are_the_same(device: str) -> None:
    generator = torch.Generator().manual_seed(0)

    def sparse() -> Sparse:
        at_K = torch.randperm(400, generator=generator)[:60].sort().values.int()
        return Sparse(at_K, torch.randn(60, generator=generator))

    def moved(part: Sparse) -> Sparse:
        return Sparse(part.at_K.to(device), part.values_K.to(device))

    parts = [sparse() for _ in range(3)]
    _same(add_all([moved(piece) for piece in parts]), add_all(parts))
    for found, wanted in zip(
        merge(moved(parts[0]), moved(parts[1]), 40), merge(parts[0], parts[1], 40), strict=True
    ):
        _same(found, wanted)
    unpacked = Sparse.unpack(moved(parts[0]).pack())
    _same(unpacked, parts[0])
    flat_M = torch.zeros(400, device=device)
    unpacked.scatter(flat_M, 0.5)
    assert float(flat_M.abs().sum()) == pytest.approx(float(parts[0].values_K.abs().sum()) / 2)
    assert not merge(Sparse.poison(40, torch.device(device)), moved(parts[1]), 40)[0].finite


def test_the_first_of_equal_magnitudes_are_kept(device: str) -> None:
    values_N = torch.tensor([1.0, -2.0, 2.0, -2.0, 0.5, 3.0])
    for k in range(1, 7):
        assert largest(values_N.to(device), k).tolist() == largest(values_N, k).tolist()


def _same(found: Sparse, wanted: Sparse) -> None:
    assert found.at_K.tolist() == wanted.at_K.tolist()
    torch.testing.assert_close(found.values_K.cpu(), wanted.values_K)
