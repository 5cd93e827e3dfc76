"""ResNet-50 on a GPU: our trainer beside loops as timm's and torchvision's scripts have them."""

import multiprocessing
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from skindx.core.machine import cpu_count
from skindx.core.measurement import interleave
from skindx.training.parallel.mesh import Mesh
from skindx_bench.data.images import noisy_jpegs
from skindx_bench.harness.clock import Figure, median, ratio
from skindx_bench.harness.peak import peak_shares, training_flops
from skindx_bench.trainer.loops import TrainerLoop, job
from skindx_bench.trainer.peers import PEERS, Epoch, Work, ceiling

_ENGINE = {"precision": "bf16", "channels_last": True, "compile": True}


def measure(
    folder: Path,
    mesh: Mesh,
    *,
    model: str,
    side: int,
    batch: int,
    steps: int,
    rounds: int,
    peers: Sequence[str],
) -> tuple[dict[str, Figure], str]:
    """Return ratios to the peers, images/s and shares of the GPU's peak; and a note on them."""
    training = job(
        folder / "gpu",
        noisy_jpegs(steps * batch),
        *(model, side, batch),
        engine=_ENGINE,
        loader={"cache": {"kind": "disk"}},
    )
    loop = TrainerLoop(training, replace(mesh, settings=training.settings.engine))
    device = mesh.device
    workers = cpu_count() if device.type == "cuda" else 1
    work = Work(training.folder / "store", model, side, batch, steps, workers, device)
    candidates: dict[str, Epoch] = {
        "trainer": loop.epoch,
        **{name: PEERS[name](work) for name in peers},
        "ceiling": ceiling(work),
    }
    # The first rounds compile: once for the first shape, and again for whatever changes after it.
    seconds = interleave(
        {name: _whole(loop, device) for name, loop in candidates.items()}, rounds, 2
    )
    loop.close()
    for worker in multiprocessing.active_children():  # of the peers' loaders, which would stay
        worker.terminate()
        worker.join()
    per_epoch = steps * batch
    figures = {f"ours_over_{peer}": ratio(seconds["trainer"], seconds[peer]) for peer in peers}
    for name, samples in seconds.items():
        rates = [per_epoch / took for took in samples]
        figures[f"{model}, {name}"] = median(rates, "images/s")
    shares, peak = _peak_shares(seconds, work)
    return figures | shares, f"{_note(work, peers)} {peak}"


def _whole(epoch: Epoch, device: torch.device) -> Epoch:
    """Let the clock wait for what the GPU was given."""

    def run() -> None:
        epoch()
        synchronize(device)

    return run


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done all that it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak_shares(
    seconds: Mapping[str, Sequence[float]], work: Work
) -> tuple[dict[str, Figure], str]:
    """Return which share of the GPU's peak each loop uses, and a sentence on the peak."""
    import timm

    name = torch.cuda.get_device_name(work.device) if work.device.type == "cuda" else "the CPU"
    each_image = training_flops(timm.create_model(work.model), work.side)
    counted = f"One image takes {each_image / 1e9:.3g} GFLOP forward and backward."
    shares = peak_shares(seconds, work.steps * work.batch * each_image, name)
    if not shares:
        return {}, f"{counted} The peak of {name} is unknown."
    return shares, f"{counted} Shares of the peak of {name}: bf16, dense, NVIDIA's data sheet."


def _note(work: Work, peers: Sequence[str]) -> str:
    said = {
        "timm": f"timm: as its train.py, {work.workers} workers, prefetched, compiled, channels "
        "last. ",
        "torchvision": f"torchvision: as its reference script, {work.workers} workers, neither "
        "compiled nor channels last, as the script has neither. ",
    }
    return (
        f"{work.model}, {work.side} px, batch {work.batch}, bf16 autocast on {work.device.type}, "
        f"{work.workers} cores, cudnn.benchmark for all. trainer: compiled, channels last, uint8 "
        "images from the cache on disk, a crop, turns and colour; it alone clips gradients. "
        f"{''.join(said[peer] for peer in peers)}"
        "ceiling: forward and backward of one batch, compiled. ours_over_X: images/s of the "
        "trainer / X's."
    )
