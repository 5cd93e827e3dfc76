"""ResNet-50 on a GPU: our trainer beside loops as timm's and torchvision's scripts have them."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from skindx.bench.data.images import noisy_jpegs
from skindx.bench.harness.clock import Figure, interleave, median, ratio
from skindx.bench.trainer.loops import TrainerLoop, job
from skindx.system import cpu_count
from skindx.training.parallel.mesh import Mesh

SIDE, MODEL = 224, "resnet50"
_ENGINE = {"precision": "bf16", "channels_last": True, "compile": True}
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Epoch = Callable[[], None]


def measure(
    folder: Path, batch: int, steps: int, rounds: int, mesh: Mesh
) -> tuple[dict[str, Figure], dict[str, Figure], str]:
    """Return ratios to the peers, pictures a second, and a note on how they were run."""
    work = job(
        folder / "gpu",
        noisy_jpegs(steps * batch),
        *(MODEL, SIDE, batch),
        engine=_ENGINE,
        loader={"cache": {"kind": "disk"}},
    )
    loop = TrainerLoop(work, replace(mesh, settings=work.settings.engine))
    workers = cpu_count()
    store, device = work.folder / "store", mesh.device
    candidates: dict[str, Epoch] = {
        "trainer": loop.epoch,
        "timm": _timm(store, batch, workers, device),
        "torchvision": _torchvision(store, batch, workers, device),
        "ceiling": _ceiling(batch, steps, device),
    }
    # The first rounds compile: once for the first shape, and again for whatever changes after it.
    seconds = interleave({name: _whole(each) for name, each in candidates.items()}, rounds, 2)
    loop.close()
    figures = {
        f"trainer_over_{peer}": ratio(seconds["trainer"], seconds[peer])
        for peer in ("timm", "torchvision")
    }
    rates = {
        f"{MODEL}, {name}": median([steps * batch / each for each in samples], "pictures/s")
        for name, samples in seconds.items()
    }
    return figures, rates, _note(batch, workers)


def _whole(epoch: Epoch) -> Epoch:
    """Let the clock wait for what the GPU was given."""

    def run() -> None:
        epoch()
        torch.cuda.synchronize()

    return run


def _timm(store: Path, batch: int, workers: int, device: torch.device) -> Epoch:
    """As timm's train.py with --amp --amp-dtype bfloat16 --channels-last --torchcompile."""
    import timm
    from timm.data import ImageDataset, create_loader
    from timm.optim import create_optimizer_v2

    model = timm.create_model(MODEL).to(device, memory_format=torch.channels_last)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    loader = create_loader(
        ImageDataset(str(store)),
        input_size=(3, SIDE, SIDE),
        batch_size=batch,
        is_training=True,
        num_workers=workers,
        pin_memory=True,
        device=device,
    )
    compiled = torch.compile(model, backend="inductor")

    def epoch() -> None:
        model.train()
        for pictures, labels in loader:  # normalised and on the device: timm's PrefetchLoader
            inputs = pictures.contiguous(memory_format=torch.channels_last)
            _amp_step(compiled, optimizer, inputs, labels)

    return epoch


def _torchvision(store: Path, batch: int, workers: int, device: torch.device) -> Epoch:
    """As in torchvision's references/classification/train.py with --amp, in bfloat16."""
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.models import resnet50
    from torchvision.transforms import v2

    crop = [v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()]
    steps = [*crop, v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    folder = ImageFolder(store, v2.Compose([*steps, v2.Normalize(_MEAN, _STD)]))
    loader: Iterable[Any] = DataLoader(
        folder,
        batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=True,
        drop_last=True,
        persistent_workers=True,
    )
    model = resnet50().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)

    def epoch() -> None:
        model.train()
        for pictures, labels in loader:
            loss = _amp_step(model, optimizer, pictures.to(device), labels.to(device))
            loss.item()  # the script's meters read it in each step

    return epoch


def _amp_step(
    model: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    labels: Tensor,
) -> Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss


def _ceiling(batch: int, steps: int, device: torch.device) -> Epoch:
    """Forward and backward alone, on one batch that lies on the device."""
    import timm

    model = timm.create_model(MODEL).to(device, memory_format=torch.channels_last)
    model.compile()
    inputs = torch.rand(batch, 3, SIDE, SIDE, device=device)
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    labels = torch.zeros(batch, dtype=torch.long, device=device)

    def epoch() -> None:
        for _ in range(steps):
            model.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]

    return epoch


def _note(batch: int, workers: int) -> str:
    return (
        f"{MODEL}, {SIDE} px, batch {batch}, bf16 autocast on one GPU, {workers} cores, "
        "cudnn.benchmark for all. trainer: compiled, channels last, uint8 pictures from the cache "
        "on disk, a crop, turns and colour; it alone clips gradients. "
        f"timm: as its train.py, {workers} workers, prefetched, compiled, channels last. "
        f"torchvision: as its reference script, {workers} workers, neither compiled nor channels "
        "last, as the script has neither. ceiling: forward and backward of one batch, compiled."
    )
