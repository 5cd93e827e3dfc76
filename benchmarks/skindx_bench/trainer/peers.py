"""Loops of others on a GPU: timm's and torchvision's training scripts, and the ceiling."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Epoch = Callable[[], None]


@dataclass(frozen=True)
class Work:
    """Network and data of every loop."""

    store: Path
    """Folder of JPEG files; timm and torchvision take its folders for classes."""
    model: str
    side: int
    batch: int
    steps: int
    workers: int
    device: torch.device


def timm_script(work: Work) -> Epoch:
    """As timm's train.py with --amp --amp-dtype bfloat16 --channels-last --torchcompile."""
    import timm
    from timm.data import ImageDataset, create_loader
    from timm.optim import create_optimizer_v2

    model = timm.create_model(work.model).to(work.device, memory_format=torch.channels_last)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    loader = create_loader(
        ImageDataset(str(work.store)),
        input_size=(3, work.side, work.side),
        batch_size=work.batch,
        is_training=True,
        num_workers=work.workers,
        pin_memory=work.device.type == "cuda",
        device=work.device,
    )
    compiled = torch.compile(model, backend="inductor")

    def epoch() -> None:
        model.train()
        for images, labels in loader:  # normalised and on the device: timm's PrefetchLoader
            inputs = images.contiguous(memory_format=torch.channels_last)
            _amp_step(compiled, optimizer, inputs, labels)

    return epoch


def torchvision_script(work: Work) -> Epoch:
    """As in torchvision's references/classification/train.py with --amp, in bfloat16."""
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.models import get_model
    from torchvision.transforms import v2

    crop = [v2.RandomResizedCrop(work.side, antialias=True), v2.RandomHorizontalFlip()]
    steps = [*crop, v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    folder = ImageFolder(work.store, v2.Compose([*steps, v2.Normalize(_MEAN, _STD)]))
    loader: Iterable[Any] = DataLoader(
        folder,
        work.batch,
        shuffle=True,
        num_workers=work.workers,
        pin_memory=work.device.type == "cuda",
        drop_last=True,
        persistent_workers=True,
    )
    model = get_model(work.model).to(work.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)

    def epoch() -> None:
        model.train()
        for images, labels in loader:
            loss = _amp_step(model, optimizer, images.to(work.device), labels.to(work.device))
            loss.item()  # the script's meters read it in each step

    return epoch


def _amp_step(
    model: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    labels: Tensor,
) -> Tensor:
    with torch.autocast(inputs.device.type, torch.bfloat16):
        loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss


def ceiling(work: Work) -> Epoch:
    """Forward and backward alone, on one batch that lies on the device."""
    import timm

    model = timm.create_model(work.model).to(work.device, memory_format=torch.channels_last)
    model.compile()
    inputs = torch.rand(work.batch, 3, work.side, work.side, device=work.device)
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    labels = torch.zeros(work.batch, dtype=torch.long, device=work.device)

    def epoch() -> None:
        for _ in range(work.steps):
            model.zero_grad(set_to_none=True)
            with torch.autocast(work.device.type, torch.bfloat16):
                loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]

    return epoch


PEERS: dict[str, Callable[[Work], Epoch]] = {
    "timm": timm_script,
    "torchvision": torchvision_script,
}
"""Whose script -> what builds its loop."""
