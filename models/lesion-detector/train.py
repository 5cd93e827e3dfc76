"""Train the detector of this folder in a given time: `python models/lesion-detector/train.py`.

TILES is what `python -m skindx_bench.scan.training_set` wrote, RUN gets `detector/`. Two processes
step on their own and average their weights (local steps) by the clock, so that a busy machine
costs steps and no waiting; the learning rate falls along a cosine of the time, to zero at its end.
"""

import argparse
import copy
import math
import os
import time
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from skindx.data.manifest import Record, read_manifest
from skindx.models.detector import read_detector, save_detector
from skindx.training.tasks.detector_job import DetectionLoss, DetectionNet, build_network

BATCH, DECAY, WARM_S, SYNC_S, KEEP_S = 8, 0.0005, 60.0, 15.0, 300.0
"""Images a step, weight decay, seconds of warm-up, between averages, between files."""
AVERAGE, AVERAGE_STEPS = 0.995, 100
"""Decay of the moving average of the weights, and the steps in which it climbs to it."""
LONGEST_NORM = 10.0


def example(
    folder: Path, record: Record, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return a tile S x S x 3, mirrored, turned, in other light, and its boxes as shares."""
    tile = cv2.imread(str(folder / record.path))[..., ::-1].astype(np.float32)
    side = len(tile)
    boxes = np.array([(b.x1, b.y1, b.x2, b.y2) for b in record.boxes or ()]).reshape(-1, 4) / side
    for _ in range(int(rng.integers(4))):  # a quarter turn: (x, y) goes to (y, 1 - x)
        tile = np.rot90(tile)
        boxes = np.stack([boxes[:, 1], 1 - boxes[:, 2], boxes[:, 3], 1 - boxes[:, 0]], axis=1)
    if rng.random() < 0.5:
        tile = tile[:, ::-1]
        boxes = np.stack([1 - boxes[:, 2], boxes[:, 1], 1 - boxes[:, 0], boxes[:, 3]], axis=1)
    grey = tile.mean(axis=2, keepdims=True)
    tile = grey + (tile - grey) * np.float32(rng.uniform(0.6, 1.4))
    tile = tile * rng.uniform(0.95, 1.05, 3).astype(np.float32) * np.float32(rng.uniform(0.75, 1.2))
    centres = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1)
    return np.clip(tile, 0, 255).astype(np.uint8), centres


def batch_of(
    folder: Path, records: list[Record], rng: np.random.Generator
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return images B x S x S x 3 and boxes, labels and places in the batch."""
    made = [example(folder, records[n], rng) for n in rng.integers(len(records), size=BATCH)]
    places = np.repeat(np.arange(BATCH), [len(boxes) for _, boxes in made])
    boxes_K4 = torch.from_numpy(np.concatenate([boxes for _, boxes in made])).float()
    images = torch.from_numpy(np.stack([tile for tile, _ in made]))
    return images, (boxes_K4, torch.zeros(len(boxes_K4)), torch.from_numpy(places).float())


@torch.no_grad()
def average(net: nn.Module) -> None:
    """Replace weights and statistics by their mean over the processes."""
    for tensor in net.state_dict().values():
        if tensor.is_floating_point():
            dist.all_reduce(tensor)
            tensor.div_(dist.get_world_size())


def keep(net: nn.Module, run: Path) -> None:
    """Write the network as a run's finished detector."""
    save_detector(run / "detector", {**net.yaml, "nc": 1}, net.state_dict())  # type: ignore[dict-item]


def train(rank: int, options: argparse.Namespace) -> None:
    """Train on one process; the first writes."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options.port)}
    dist.init_process_group("gloo", rank=rank, world_size=options.processes)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = build_network(options.model, 1)
    if options.start:
        net.load_state_dict(read_detector(options.start)[1])
    model, loss = (
        DetectionNet(net).train().to(memory_format=torch.channels_last),
        DetectionLoss(net),
    )
    mean = copy.deepcopy(net)
    records = [r for r in read_manifest(options.tiles) if r.split == "train"]
    rng = np.random.default_rng((options.seed, rank))
    optimizer = torch.optim.AdamW(net.parameters(), options.rate, weight_decay=DECAY)
    started = kept = time.monotonic()
    steps, averages, recent = 0, 0, []
    while averages < int(options.seconds / SYNC_S):  # as many on every process
        passed = time.monotonic() - started
        share = min(1.0, max(0.0, (passed - WARM_S) / (options.seconds - WARM_S)))
        rate = options.rate * min(1.0, (passed + 1) / WARM_S) * (1 + math.cos(math.pi * share)) / 2
        optimizer.param_groups[0]["lr"] = rate
        images, (boxes_K4, labels_K, place_K) = batch_of(options.tiles, records, rng)
        total, scores = loss(model(images), boxes_K4, labels_K, place_K)
        value = total / scores.detach().clamp(min=1)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), LONGEST_NORM)
        optimizer.step()
        steps += 1
        recent.append(float(value.detach()))
        decay = AVERAGE * (1 - math.exp(-steps / AVERAGE_STEPS))
        with torch.no_grad():
            for old, new in zip(mean.state_dict().values(), net.state_dict().values(), strict=True):
                old.lerp_(new, 1 - decay) if old.is_floating_point() else old.copy_(new)
        if time.monotonic() - started > (averages + 1) * SYNC_S:
            averages += 1
            average(net)
            if rank == 0:
                print(f"{passed:.0f} s  step {steps}  loss {np.mean(recent[-50:]):.3f}", flush=True)
                if time.monotonic() - kept > KEEP_S:
                    kept = time.monotonic()
                    keep(mean, options.run)
    average(mean)
    if rank == 0:
        keep(mean, options.run)
        print(f"{steps} steps of {BATCH} images on each of {options.processes} processes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tiles", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--start", type=Path, help="a folder with the weights to go on from")
    parser.add_argument("--rate", type=float, default=0.002, help="peak learning rate")
    parser.add_argument("--model", default="configs/lesion-yolo.yaml")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--port", type=int, default=29551)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    mp.spawn(train, (given,), given.processes)
