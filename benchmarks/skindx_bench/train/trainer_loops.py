"""The loops that `skindx bench trainer` compares, over the same images and settings.

`python -m skindx_bench.train.trainer_loops FOLDER MODEL SIZE BATCH` runs the bare one, an epoch for
each line on standard input. On a GPU: timm's and torchvision's training scripts, the ceiling, and
shares of the GPU's peak.
"""

import multiprocessing
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skindx.core.machine import cpu_count, go_offline
from skindx.core.measurement import interleave
from skindx.data.layout import store_bytes
from skindx.data.loader.load import Reading, memory_for, threads_for
from skindx.data.loader.source import InMemory
from skindx.data.manifest import Record
from skindx.models.classifier.classifier import build_classifier
from skindx.training.callbacks import Silent
from skindx.training.config.run import TrainSettings
from skindx.training.loop import take_steps
from skindx.training.parallel.mesh import Mesh
from skindx.training.tasks.classifier_job import setup_member
from skindx.training.tasks.image_sets import TrainingSet, training_batches
from skindx.training.tasks.losses import build_loss
from skindx.training.tasks.open_sets import TrainingData, class_numbers
from skindx.training.tasks.optimizer import build_optimizer
from skindx_bench.harness.result import Figure, median, ratio
from skindx_bench.harness.training import HEIGHT, WIDTH, noisy_jpegs

_TFLOPS: tuple[tuple[str, float], ...] = (
    ("B200", 2250),
    ("H200 NVL", 835),
    ("H200", 989),
    ("H100 NVL", 835),
    ("H100 PCIe", 756),
    ("H100", 989),
    ("H800 PCIe", 756),
    ("H800", 989),
    ("H20", 148),
    ("A100", 312),
    ("A800", 312),
    ("A40", 149.7),
    ("A30", 165),
    ("A10", 125),
    ("L40S", 362),
    ("L40", 181),
    ("L4", 121),
    ("RTX A6000", 154.8),
    ("RTX 6000 Ada", 364.2),
    ("RTX 4090", 165.2),
    ("RTX 3090", 71),
)
"""Words of a GPU's name -> its peak in TFLOP/s: bfloat16 products without sparsity, sums in
float32, from NVIDIA's data sheets. A longer name stands before the shorter one that is in it."""


def peak_flops(name: str) -> float | None:
    """Return the peak of the GPU of this name in FLOP/s, or None for one that is not listed."""
    for words, tflops in _TFLOPS:
        if re.search(rf"\b{re.escape(words)}\b", name.replace("-", " ")):
            return tflops * 1e12
    return None


def peak_shares(
    seconds: Mapping[str, Sequence[float]], flops: float, gpu: str
) -> dict[str, Figure]:
    """Return which share of the GPU's peak each loop uses that takes `flops` in these seconds.

    Empty for a GPU that is not listed.
    """
    peak = peak_flops(gpu)
    if peak is None:
        return {}
    return {
        f"{loop}, share of peak": median([flops / took / peak for took in samples], "of peak")
        for loop, samples in seconds.items()
    }


def training_flops(network: Any, side: int) -> float:
    """Return the operations of one image's forward and backward pass (2 a multiply-add).

    `network` takes float images of `side` pixels, channels first, on the CPU.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    count = 2  # batch normalisation needs more than one
    with FlopCounterMode(display=False) as counter:
        network(torch.zeros(count, 3, side, side)).sum().backward()
    network.zero_grad(set_to_none=True)
    return float(counter.get_total_flops()) / count


CLASSES = tuple(f"class{number}" for number in range(8))


@dataclass(frozen=True)
class Job:
    """A dataset folder with its records, and what to train on it."""

    folder: Path
    records: Sequence[Record]
    settings: TrainSettings


def job(
    folder: Path, files: Sequence[bytes], model: str, size: int, batch: int, **more: Any
) -> Job:
    """Put JPEG files into a dataset folder's store and return a job that trains on them."""
    records = []
    for number, data in enumerate(files):
        sha256, path = store_bytes(folder, data, ".jpg")
        label = CLASSES[number % len(CLASSES)]
        records.append(Record(path, sha256, "", WIDTH, HEIGHT, label, sha256, "train"))
    settings = TrainSettings.parse(
        {
            # The schedule never ends within a bench; its length does not matter for the time.
            "recipe": {"epochs": 1000, "batch": batch, "augment": {"scale": [0.4, 1.0]}},
            "members": [{"name": "bench", "model": model, "preprocess": {"size": size}}],
            **more,
        }
    )
    return Job(folder, records, settings)


class TrainerLoop:
    """Our trainer's steps, an epoch at a call."""

    def __init__(self, work: Job, mesh: Mesh) -> None:
        data = TrainingData(work.folder, work.records, work.records[:1], CLASSES)
        member = work.settings.members[0]
        self._silent = Silent()
        self.training = setup_member(work.settings, member, data, mesh, self._silent.line)
        self.waits: list[float] = []
        """Seconds that each epoch waited for its batches."""

    def epoch(self) -> None:
        """Take an epoch's steps."""
        position = self.training.position
        take_steps(self.training, self._silent, lambda training: None)
        position.epoch, position.step = position.epoch + 1, 0
        self.waits.append(self.training.waiting.seconds)

    def close(self) -> None:
        """Release the engine."""
        self.training.engine.close()


class BareLoop:
    """The same forward, backward and update in plain PyTorch, an epoch at a call."""

    def __init__(self, work: Job, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        self.settings, self.member = work.settings, work.settings.members[0]
        recipe = self.settings.recipe_of(self.member)
        self.classifier = build_classifier(self.member, len(CLASSES)).to(device)
        self.optimizer = build_optimizer(self.classifier, recipe, [])
        labels_N = class_numbers(work.records, CLASSES)
        self.loss: nn.Module = build_loss(labels_N, len(CLASSES), recipe).to(device)
        loader = self.settings.loader
        self.images = TrainingSet(
            InMemory(work.folder, work.records),
            labels_N,
            sharded=False,
            reading=Reading(threads_for("auto", 1), loader.prefetch, memory_for(device)),
        )
        self.epochs = 0

    def epoch(self) -> None:
        """Take an epoch's steps."""
        recipe = self.settings.recipe_of(self.member)
        order = np.random.default_rng(self.epochs).permutation(len(self.images))
        batches = training_batches(
            self.images,
            np.array_split(order, len(order) // recipe.batch),
            recipe.augment,
            side=self.member.preprocess.size,
            seed=0,
            epoch=self.epochs,
        )
        self.classifier.train()
        for images_BSS3, labels_B in batches:
            logits_BC = self.classifier(images_BSS3.to(self.device))
            loss = self.loss(logits_BC, labels_B.to(self.device)) / len(labels_B)
            loss.backward()
            nn.utils.clip_grad_norm_(self.classifier.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            loss.item()
        self.epochs += 1


def main(arguments: list[str]) -> None:
    """Run the bare loop with memory settings as they are."""
    folder, model, size, batch = arguments
    go_offline()
    files = sorted(Path(folder).glob("store/**/*.jpg"))
    work = job(Path(folder), [file.read_bytes() for file in files], model, int(size), int(batch))
    loop = BareLoop(work, torch.device("cpu"))
    for _ in sys.stdin:
        loop.epoch()
        print("done", flush=True)


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
) -> tuple[dict[str, Figure], dict[str, list[float]], str]:
    """Return ratios to the peers, images/s and shares of the peak; seconds by round; and a note."""
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
    return figures | shares, dict(seconds), f"{_note(work, peers)} {peak}"


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


if __name__ == "__main__":
    main(sys.argv[1:])
