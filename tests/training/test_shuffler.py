import os
import tracemalloc
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks

from skindx.core.errors import JobError
from skindx.data.loader.batches import owners
from skindx.data.loader.cache import CacheContext, Node, NodeMemory, open_cached
from skindx.data.loader.settings import LoaderSettings
from skindx.data.loader.shuffler import ShardShuffler, gloo_group
from skindx.data.loader.source import Files, InMemory, rank_in_memory
from skindx.data.manifest import Record
from skindx.training.config.engine import EngineSettings
from skindx.training.parallel.mesh import Mesh, ProcessGroup

WORLD, COUNT, SEED, CHUNK = 3, 800, 4, 200_000
SIZES = np.random.default_rng(0).integers(1, 10_000, COUNT)  # 4 MB


def content(index: int) -> bytes:
    return np.random.default_rng(index).bytes(int(SIZES[index]))


def record(index: int) -> Record:
    return Record(str(index), "", "", 1, 1, "x", "g", "train")


RECORDS = [record(index) for index in range(COUNT)]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for index in range(COUNT):
        (folder / str(index)).write_bytes(content(index))
    return folder


def _mesh() -> Mesh:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    settings = EngineSettings(accelerator="cpu", timeout_s=30)
    return Mesh(ProcessGroup(dist.get_rank(), dist.get_world_size()), torch.device("cpu"), settings)


def _shuffler(folder: Path, mesh: Mesh, group: Any, kept: float = 1.0) -> ShardShuffler:
    source = InMemory(folder, RECORDS, kept)
    kept_P = np.array(mesh.gather(kept))
    return ShardShuffler(source, SIZES, kept_P, mesh, group, chunk_bytes=CHUNK)


def _held(shuffler: ShardShuffler) -> list[int]:
    return [index for index in range(COUNT) if index in shuffler.source]


def _read_share(shuffler: ShardShuffler, epoch: int) -> None:
    """Do what an epoch does: read every image of this rank's share."""
    own = np.flatnonzero(owners(COUNT, SEED, epoch, shuffler.mesh.data.size) == dist.get_rank())
    for index in own.tolist():
        assert shuffler.source.read(index) == content(index)


def _several_epochs(folder: Path, mesh: Mesh, group: Any) -> dict[str, Any]:
    shuffler = _shuffler(folder, mesh, group)
    shuffler.enter(SEED, 0)
    assert not _held(shuffler)
    _read_share(shuffler, 0)
    shuffler.source.dataset = folder / "gone"  # from here on nothing can be read from a file
    held, sent = [_held(shuffler)], []
    for epoch in range(1, 5):
        shuffler.enter(SEED, epoch)
        held.append(_held(shuffler))
        _read_share(shuffler, epoch)
        sent.append(shuffler.sent_bytes)
    shuffler.enter(SEED, 4)  # a second time nothing moves
    assert (shuffler.sent_bytes, _held(shuffler)) == (sent[-1], held[-1])
    return {"held": held, "sent": sent}


def _peak(folder: Path, mesh: Mesh, group: Any) -> dict[str, float]:
    shuffler = _shuffler(folder, mesh, group)
    shuffler.enter(SEED, 0)
    tracemalloc.start()
    empty = tracemalloc.get_traced_memory()[0]
    _read_share(shuffler, 0)
    before = tracemalloc.get_traced_memory()[0] - empty
    tracemalloc.reset_peak()
    shuffler.enter(SEED, 1)
    now, peak = (size - empty for size in tracemalloc.get_traced_memory())
    tracemalloc.stop()
    return {"before": before, "after": now, "peak": peak}


def _part_kept(folder: Path, mesh: Mesh, group: Any) -> int:
    """The ranks keep different parts of their shares; the rest is read from files as before."""
    kept = (0.3, 1.0, 0.6)
    shuffler = _shuffler(folder, mesh, group, kept[mesh.data.rank])
    for epoch in range(3):
        shuffler.enter(SEED, epoch)
        _read_share(shuffler, epoch)
        assert all(rank_in_memory(index) < kept[mesh.data.rank] for index in _held(shuffler))
    return shuffler.sent_bytes


def _shared_memory(folder: Path, mesh: Mesh) -> tuple[bool, int, int]:
    """Unsharded, the node's ranks read each file once and hold one copy."""
    context = CacheContext(LoaderSettings(), Node(WORLD, WORLD, 10**9), mesh, print)
    kept = open_cached(Files(folder, RECORDS), 0, context)
    assert isinstance(kept.source, NodeMemory)
    for index in range(mesh.data.rank, COUNT, WORLD):
        kept.source.read(index)
    mesh.barrier()
    kept.source.dataset = folder / "gone"
    assert all(kept.source.read(index) == content(index) for index in range(COUNT))
    held = os.fstat(kept.source._descriptor)
    return kept.sharded, held.st_ino, held.st_blocks * 512


def _resumed(folder: Path, mesh: Mesh, group: Any) -> list[list[int]]:
    """A training that starts in the middle reads its share, and then exchanges as all others."""
    shuffler, held = _shuffler(folder, mesh, group), []
    for epoch in (2, 3):
        shuffler.enter(SEED, epoch)
        _read_share(shuffler, epoch)
        held.append(_held(shuffler))
    return held


def _all(folder: Path) -> dict[str, Any]:
    mesh = _mesh()
    group = gloo_group(mesh)
    result = {
        "epochs": _several_epochs(folder, mesh, group),
        "peak": _peak(folder, mesh, group),
        "part": _part_kept(folder, mesh, group),
        "shared": _shared_memory(folder, mesh),
        "resumed": _resumed(folder, mesh, group),
    }
    last = _shuffler(folder, mesh, group)
    last.enter(SEED, 0)
    mesh.barrier()
    if mesh.data.rank == 0:
        return result  # its process ends, as if it had been killed
    with pytest.raises(JobError) as caught:
        last.enter(SEED, 1)
    return {**result, "said": str(caught.value)}


@pytest.fixture(scope="module")
def ranks(images: Path) -> list[dict[str, Any]]:
    return run_ranks(WORLD, _all, images, timeout_s=240)


@pytest.mark.distributed
def test_each_epoch_has_every_image_once_and_ranks_see_others(ranks: list[Any]) -> None:
    epochs = [report["epochs"]["held"] for report in ranks]
    for epoch in range(5):
        assert Counter(index for held in epochs for index in held[epoch]) == Counter(range(COUNT))
        owner = owners(COUNT, SEED, epoch, WORLD)
        for rank, held in enumerate(epochs):
            assert held[epoch] == np.flatnonzero(owner == rank).tolist()
    for held in epochs:
        assert len(set().union(*held)) > 0.8 * COUNT  # 1 - (2/3)^5 = 87 % in expectation


@pytest.mark.distributed
def test_bytes_sent_are_those_that_changed_hands(ranks: list[Any]) -> None:
    for epoch in range(1, 5):
        before, after = (owners(COUNT, SEED, number, WORLD) for number in (epoch - 1, epoch))
        sent = sum(rank["epochs"]["sent"][epoch - 1] for rank in ranks)
        assert sent == SIZES[before != after].sum()
    whole = np.mean([sum(rank["epochs"]["sent"]) / 4 for rank in ranks]) * WORLD
    assert whole == pytest.approx((1 - 1 / WORLD) * SIZES.sum(), rel=0.1)


@pytest.mark.distributed
def test_memory_is_bounded_by_the_share_and_two_chunks(ranks: list[Any]) -> None:
    for rank in ranks:
        peak = rank["peak"]
        share = max(peak["before"], peak["after"])
        assert share > 5 * CHUNK  # or the bound would say nothing
        # A chunk each way, and for each partner what a piece is uneven by; and lists of numbers.
        # In one piece it would be 0.9 MB each way.
        allowed = 2 * CHUNK + 4 * (WORLD - 1) * SIZES.max() + 120_000
        assert peak["peak"] <= share + allowed


@pytest.mark.distributed
def test_what_either_end_does_not_keep_is_not_sent(ranks: list[Any]) -> None:
    kept = np.array([0.3, 1.0, 0.6])
    before, after = (owners(COUNT, SEED, number, WORLD) for number in (1, 2))
    places = np.array([rank_in_memory(index) for index in range(COUNT)])
    moved = (before != after) & (places < kept[before]) & (places < kept[after])
    assert sum(rank["part"] for rank in ranks) == SIZES[moved].sum()


@pytest.mark.distributed
def test_the_ranks_of_a_node_hold_one_copy(ranks: list[Any]) -> None:
    if not hasattr(os, "memfd_create"):
        pytest.skip("memfd is Linux's")
    assert not any(sharded for sharded, _, _ in (rank["shared"] for rank in ranks))
    files = {(inode, size) for _, inode, size in (rank["shared"] for rank in ranks)}
    assert len(files) == 1
    ((_, size),) = files
    assert SIZES.sum() <= size <= SIZES.sum() + COUNT + 2 * 4096


@pytest.mark.distributed
def test_a_training_that_starts_in_the_middle_holds_the_same(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["resumed"] == rank["epochs"]["held"][2:4]


@pytest.mark.distributed
def test_a_rank_that_is_gone_ends_the_others_with_a_sentence(ranks: list[Any]) -> None:
    for rank in (1, 2):
        said = ranks[rank]["said"]
        assert said.startswith(
            f"the exchange of images before epoch 2 failed on rank {rank}, because another rank"
        )
