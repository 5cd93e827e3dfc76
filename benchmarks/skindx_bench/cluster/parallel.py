"""AlexNet with its wide layers split over ranks, beside data parallelism and one rank alone."""

import statistics
import tempfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from skindx.data.synthetic.painter import CLASSES, paint
from skindx_bench.cluster.parallel_arms import (
    WORKER,
    Config,
    ParallelForm,
    Predictions,
    agreement,
    agreement_figure,
    arms_of,
    compare,
)
from skindx_bench.harness.netlab import Link, NetLab, require
from skindx_bench.harness.ranks import EmulatedCluster
from skindx_bench.harness.result import Figure, Result, median, ratio


def write_images(file: Path, images: int, side: int) -> int:
    """Write images N x S x S x 3 and labels N in a fixed random order; return their classes."""
    labels_N = np.random.default_rng(0).permutation(np.arange(images) % len(CLASSES))
    images_NSS3 = np.empty((images, side, side, 3), np.uint8)
    for number, label in enumerate(labels_N.tolist()):
        pixels = paint(CLASSES[label], number).pixels
        edge = min(pixels.shape[:2])
        top, left = (pixels.shape[0] - edge) // 2, (pixels.shape[1] - edge) // 2
        square = pixels[top : top + edge, left : left + edge]
        images_NSS3[number] = cv2.resize(square, (side, side), interpolation=cv2.INTER_AREA)
    np.savez(file, images=images_NSS3, labels=labels_N.astype(np.int64))
    return len(CLASSES)


SMALLEST = (
    "ranks=2",
    "batch=2",
    "width=64",
    "side=64",
    "rounds=2",
    "steps=1",
    "epochs=1",
    "images=40",
    "accuracy_batch=2",
    "accuracy_width=32",
    "seeds=2",
    "plan_s=1",
    "cube_rows=36",
    "cube_width=36",
)

_UNLIMITED_MBIT = 40_000.0
_RATE = 0.02
"""Learning rate of the trainings whose accuracy is compared."""


def run(settings: Config) -> Result:
    """Measure on an emulated cluster. Raises UserError where none can be built."""
    require()
    link = Link(settings.rate_mbit)
    with (
        tempfile.TemporaryDirectory(prefix="skindx-parallel-") as folder,
        NetLab(settings.ranks, link) as lab,
        EmulatedCluster(lab, settings.ranks, {"precision": settings.precision}, WORKER) as ranks,
    ):
        bench = _Bench(settings, ranks, Path(folder))
        if {"speed", "small"} & set(settings.parts):
            bench.rehearse()
        figures: dict[str, Figure] = {}
        if "speed" in settings.parts:
            figures |= bench.speed()
        if "small" in settings.parts:
            figures |= bench.small()
        if "accuracy" in settings.parts:
            lab.limit(Link(_UNLIMITED_MBIT))
            figures |= bench.accuracy()
    if "cube" in settings.parts:
        figures |= compare(settings)
    return Result("parallel", figures, notes=_notes(settings))


class _Bench:
    def __init__(self, settings: Config, ranks: EmulatedCluster, folder: Path) -> None:
        self.settings, self.ranks, self.folder = settings, ranks, folder
        self.arms = arms_of(settings)
        self._cluster: dict[str, Any] = {}

    def rehearse(self) -> None:
        """Measure the links, of which plans are made."""
        self._cluster = self.ranks.ask("links", seconds=self.settings.plan_s)[0]

    def _plan(self, side: int, classes: int) -> Predictions:
        """Let all ranks time the whole network at once."""
        s = self.settings
        size = {"side": side, "classes": classes, "width": s.width, "batch": s.batch}
        profiles = self.ranks.ask("rehearse", seconds=s.plan_s, **size)
        self.ranks.ask("end")
        return Predictions(profiles, self._cluster, s.batch * s.ranks)

    def speed(self) -> dict[str, Figure]:
        """Let all forms take turns at the usual size."""
        s = self.settings
        plan = self._plan(s.side, s.classes)
        predicted = plan.arms(self.arms)
        seconds, sent, held = self._turns(self.arms, s.side, s.classes)
        best = _best(seconds, self.arms)
        right = agreement(predicted, seconds)
        return {
            **({"plan_agrees": agreement_figure(right)} if right else {}),
            **{
                f"{name}_plan_s": Figure(value, "s", 1, (value, value))
                for name, value in predicted.items()
            },
            "owt_over_data": ratio(seconds["owt"], seconds[best]),
            **{
                f"owt_over_{name}": ratio(seconds["owt"], taken)
                for name, taken in seconds.items()
                if name != "owt"
            },
            **{f"{name}_step_s": median(taken, "s") for name, taken in seconds.items()},
            **{f"{name}_step_mb": median(bytes_, "MB") for name, bytes_ in sent.items()},
            "owt_weights_share": median(
                [owt / whole for owt, whole in zip(held["owt"], held["dense"], strict=True)],
                "of the weights",
            ),
        }

    def small(self) -> dict[str, Figure]:
        """Compare exact forms with one rank alone where convolutions are cheap."""
        s = self.settings
        exact = [arm for arm in self.arms if arm.exact]
        seconds, _, _ = self._turns(exact, s.small_side, s.small_classes, alone=True)
        best = _best(seconds, exact)
        return {
            "alone_over_data_small": ratio(seconds["alone"], seconds[best]),
            "alone_over_owt_small": ratio(seconds["alone"], seconds["owt"]),
            **{f"{name}_small_step_s": median(taken, "s") for name, taken in seconds.items()},
        }

    def _turns(
        self, arms: list[ParallelForm], side: int, classes: int, *, alone: bool = False
    ) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, list[float]]]:
        """Return seconds a step, MB that a rank sends a step and weights it holds, by form.

        One network at a time fits into the memory, so each is set up again in each round.
        """
        s = self.settings
        size = {"side": side, "classes": classes, "width": s.width}
        seconds: dict[str, list[float]] = {}
        sent: dict[str, list[float]] = {}
        held: dict[str, list[float]] = {}
        for turn in range(s.rounds):
            first = turn % len(arms)
            for arm in arms[first:] + arms[:first]:
                found = self._begin(arm, arm.steady, batch=s.batch, **size)
                held.setdefault(arm.name, []).append(_mean(found, "held"))
                self.ranks.ask("steps", count=1)
                answers = self.ranks.ask("steps", count=s.steps)
                took = max(answer["seconds"] for answer in answers)
                seconds.setdefault(arm.name, []).append(took / s.steps)
                sent.setdefault(arm.name, []).append(_mean(answers, "sent") / s.steps / 1e6)
            self.ranks.ask("end")
            if alone:
                # The same images as all ranks together.
                self.ranks.ask("begin_alone", only=0, batch=s.batch * s.ranks, **size)
                self.ranks.ask("steps_alone", only=0, count=1)
                took = self.ranks.ask("steps_alone", only=0, count=s.steps)[0]["seconds"]
                seconds.setdefault("alone", []).append(took / s.steps)
                self.ranks.ask("end", only=0)
        return seconds, sent, held

    def _begin(
        self, arm: ParallelForm, exchange: dict[str, Any], **size: Any
    ) -> list[dict[str, Any]]:
        return self.ranks.ask("begin", parallel=dict(arm.parallel), exchange=exchange, **size)

    def accuracy(self) -> dict[str, Figure]:
        """Train on painted images by each form; the links are as fast as this machine."""
        s = self.settings
        file = self.folder / "painted.npz"
        classes = write_images(file, s.images * 5 // 4, s.accuracy_side)
        size = {"side": s.accuracy_side, "classes": classes, "width": s.accuracy_width}
        batch, steps = s.accuracy_batch, max(1, round(s.images / (s.accuracy_batch * s.ranks)))
        found: dict[str, list[float]] = {}
        for seed in range(s.seeds):
            for arm in self.arms:
                if arm.exact and arm.name not in ("fused", "owt"):  # what these compute
                    continue
                own = {"batch": batch, "seed": seed}
                self._begin(arm, arm.exchange, rate=_RATE, steps_per_epoch=steps, **own, **size)
                answers = self.ranks.ask("train", file=str(file), epochs=s.epochs, **own)
                found.setdefault(arm.name, []).append(answers[0]["accuracy"])
        self.ranks.ask("end")
        return {f"{name}_accuracy": median(values, "of 1") for name, values in found.items()}


def _best(seconds: dict[str, list[float]], arms: list[ParallelForm]) -> str:
    """Return the fastest exact form that splits nothing and sends whole gradients."""
    names = [arm.name for arm in arms if arm.baseline]
    return min(names, key=lambda name: statistics.median(seconds[name]))


def _mean(answers: list[dict[str, Any]], key: str) -> float:
    return statistics.fmean(float(answer[key]) for answer in answers)


def _notes(s: Config) -> tuple[str, ...]:
    return (
        f"AlexNet (one column, hidden layers of {s.width}, last pooling to 6 x 6 at any size), "
        f"batch {s.batch} a rank, SGD, {s.precision}, {s.ranks} ranks of one thread, each in a "
        f"network namespace whose link carries {s.rate_mbit:g} Mbit/s both ways (tc tbf), gloo. "
        "Seconds are those of the slowest rank for one step on random images: forward, backward, "
        f"exchange, clipping and update, the mean of {s.steps} after one that is not timed; forms "
        "take turns and are set up again in each round.",
        f"{s.side} px, {s.classes} classes: owt_over_data compares with the fastest of dense "
        "(the engine's own), fused (buckets of 25 MB behind backward), fused with a bf16 wire. "
        "factored sends inputs and output gradients of wide layers, and stands apart. MB are what "
        "a rank's interface has sent in a step. owt_b, owt_c: the batch meets split layers in "
        "rounds. plan_s: what a "
        "plan says, from the steps of whole networks that all ranks time at once and from links "
        "measured by the collectives; plan_agrees: the share of pairs of forms in the plan's "
        "order, of those that no round confuses. "
        f"small: {s.small_side} px, {s.small_classes} classes, beside one rank of one thread that "
        f"takes the same {s.batch * s.ranks} images alone.",
        f"accuracy: {s.epochs} epochs of {s.images} painted images, {s.accuracy_side} px, batch "
        f"{s.accuracy_batch} a rank, hidden layers of {s.accuracy_width}, rate {_RATE:g}, tested "
        "on a quarter as many others; gTop-k of density "
        f"{s.density:g} with its warm-up of four epochs, PowerSGD of rank {s.rank}; owt_gtopk "
        "splits the wide layers and sends the gradients of the convolutions by gTop-k.",
        f"cube: two products, one after the other, of {s.cube_rows} rows and matrices of "
        f"{s.cube_width} x {s.cube_width}, forward and backward on {s.cube_side**3} ranks: line "
        "splits columns of the first and rows of the second (Megatron-LM), keep and again are "
        "arXiv 2105.14450 with what was gathered kept for the backward pass, or gathered again; "
        "bytes by the ranks' own count.",
        "All ranks share this machine's cores: with fewer cores than ranks a step computes longer "
        "than on as many devices, and what a form saves on the wires is a smaller share of it.",
    )
