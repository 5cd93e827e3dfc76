"""SGD, AdamW, K-FAC and Muon with equal tuning: time to the best accuracy of tuned AdamW."""

import math
import os
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cv2
from pydantic import Field, PositiveFloat, field_validator

from skindx.core.machine import free_port
from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_json
from skindx.data.layout import MANIFEST, store_bytes
from skindx.data.manifest import Record, write_manifest
from skindx.data.synthetic.painter import CLASSES, paint
from skindx.metrics.share_intervals import proportion_interval
from skindx.taxonomy import SkinClass, Taxonomy
from skindx_bench.harness.result import MEANS, Figure, Result, median
from skindx_bench.harness.training import end_on_sigterm
from skindx_bench.train.convergence_pairs import student_interval
from skindx_bench.train.second_order_runs import ARMS, BASELINE, RATE_FACTOR

if TYPE_CHECKING:
    from skindx_bench.train.second_order_runs import Curve, Reached, Trainings


def write_painted(folder: Path, images: int, side: int) -> None:
    """Paint `images` images of `side` pixels, as many of each class; the same at every call."""
    records = []
    for number in range(images):
        label = CLASSES[number % len(CLASSES)]
        pixels = paint(label, number // len(CLASSES)).pixels
        edge = min(pixels.shape[:2])
        top, left = (pixels.shape[0] - edge) // 2, (pixels.shape[1] - edge) // 2
        square = pixels[top : top + edge, left : left + edge]
        small = cv2.resize(square, (side, side), interpolation=cv2.INTER_AREA)
        coded = cv2.imencode(".png", small[..., ::-1])[1].tobytes()
        sha256, path = store_bytes(folder, coded, ".png")
        records.append(Record(path, sha256, "0" * 16, side, side, label, sha256, "train"))
    classes = tuple(SkinClass(key=key, name=key) for key in CLASSES)
    Taxonomy(name="painted", title="Painted", classes=classes).save(folder / "taxonomy.yaml")
    write_manifest(folder, records)


SMALLEST = (
    *("model=test_resnet", "size=32", "images=90", "epochs=1", "batch=16", "trials=1"),
    *(
        "shared=test_resnet",
        "arms=[adamw, kfac, muon]",
        "seeds=[0, 1]",
        "use=[0]",
        "steps=2",
        "rounds=2",
    ),
)


class Config(Settings):
    """Optimizers, data and repetitions; finished trainings in `out` are reused."""

    dataset: Path | None = None
    """A dataset folder; none: painted images of `size` pixels, ten classes."""
    images: int = Field(3000, ge=60)
    """How many are painted."""
    model: str = "test_resnet"
    """Narrow, as networks for CIFAR are: preconditioning costs the square of a layer's width."""
    shared: str = "resnet18"
    """The network whose decompositions are shared by four ranks."""
    size: int = Field(32, ge=32)
    model_args: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the model, as a member has them."""
    pretrained: bool = False
    """Start from timm's weights instead of random ones."""
    weights: Path | None = None
    """Start from the weights in this file."""
    preprocess: dict[str, Any] = Field(default_factory=dict)
    """Mean and spread of the pixels, as a member has them; `size` goes with it."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    out: Path = Path("runs/second-order")
    arms: tuple[str, ...] = tuple(ARMS)
    epochs: int = Field(15, ge=1)
    batch: int = Field(64, ge=4)
    folds: int = Field(3, ge=2)
    use: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    """Folds to validate on, of 0 .. folds - 1."""
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1)
    trials: int = Field(5, ge=1)
    """Learning rates of each optimizer that the first fold and seed choose from; see `tuned`."""
    rates: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Learning rates of optimizers that were tuned before: these are tried no more."""
    before: Path | None = None
    """An earlier result of the same settings: the arms that it has beside `arms` stay."""
    steps: int = Field(100, ge=1)
    """Steps of a timed round: those between two decompositions."""
    rounds: int = Field(5, ge=2)

    @field_validator("arms")
    @classmethod
    def _known(cls, arms: tuple[str, ...]) -> tuple[str, ...]:
        for arm in arms:
            if arm not in ARMS:
                raise ValueError(f"arms names {arm!r}; choose of {', '.join(ARMS)}")
        if len(arms) < 2 or arms[0] != BASELINE or len(set(arms)) < len(arms):
            raise ValueError(f"arms begins with {BASELINE}, and names one more at least, each once")
        return arms

    @field_validator("seeds")
    @classmethod
    def _no_seed_twice(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("seeds names a seed twice")
        return seeds


def run(settings: Config) -> Result:
    """Tune each optimizer, train it on folds and seeds, and time K-FAC's steps where it is one."""
    from skindx.training.config.engine import EngineSettings
    from skindx.training.deepspeed.ranks import join
    from skindx.training.parallel.mesh import leave
    from skindx_bench.train.second_order_runs import Trainings, eigen_share, overhead

    end_on_sigterm()
    dataset = settings.dataset or settings.out / f"painted-{settings.images}-{settings.size}"
    if not settings.dataset and not (dataset / MANIFEST).exists():
        write_painted(dataset, settings.images, settings.size)
    network = {
        "model": settings.model,
        "model_args": settings.model_args,
        "preprocess": {**settings.preprocess, "size": settings.size},
    }
    engine = EngineSettings(
        accelerator=settings.accelerator, ranks=1, precision=settings.precision, gradient_clip=0
    )
    os.environ["MASTER_PORT"] = str(free_port())
    mesh = join(engine)
    try:
        trainings = Trainings(
            dataset,
            {**network, "pretrained": settings.pretrained, "weights": settings.weights},
            {"epochs": settings.epochs, "batch": settings.batch},
            settings.folds,
            settings.out,
            mesh,
        )
        chosen = dict(settings.rates)
        for arm in settings.arms:
            if arm not in chosen:
                first = partial(_first_best, trainings, settings, arm)
                chosen[arm] = tuned(ARMS[arm].rates(settings.trials), first)
        curves: dict[str, list[Curve]] = {arm: [] for arm in settings.arms}
        for fold in settings.use:
            for seed in settings.seeds:
                for arm, kept in curves.items():  # a slow hour of the machine hits all of them
                    kept.append(trainings.curve(arm, chosen[arm], fold, seed))
        shared: dict[str, Figure] = {}
        if "kfac" in settings.arms:
            slow, plain = overhead(
                network,
                dataset,
                settings.batch,
                mesh,
                steps=settings.steps,
                rounds=settings.rounds,
                rate=chosen["kfac"],
            )
            over = [with_it / without for with_it, without in zip(slow, plain, strict=True)]
            shares = eigen_share(settings.shared, 4, settings.rounds, mesh.device)
            shared = {
                "kfac_overhead_step": median(over, "of SGD's step"),
                "eigen_share_p4": median(shares, "of one rank's time"),
            }
    finally:
        leave()
    figures: dict[str, Figure] = {}
    models = {}
    base = curves[BASELINE]
    for arm, own in curves.items():
        reached = [curve.reaches(other.best) for curve, other in zip(own, base, strict=True)]
        models[arm] = {
            "learning_rate": chosen[arm],
            "best_balanced": [curve.best for curve in own],
            "reached": [found.hit for found in reached],
            "epochs": [found.epochs for found in reached],
            "seconds": [round(found.seconds, 2) for found in reached],
            "processor_seconds": [round(found.processor_seconds, 2) for found in reached],
        }
        if arm == BASELINE:
            continue
        if any(found.hit for found in reached):
            figures |= _times(arm, reached, [curve.reaches(curve.best) for curve in base])
        hits = proportion_interval(statistics.fmean(found.hit for found in reached), len(own))
        figures[f"{arm}_reached_adamw"] = Figure.of(hits, "of runs", len(own))
        gain = student_interval(
            [100 * (curve.best - other.best) for curve, other in zip(own, base, strict=True)]
        )
        figures[f"{arm}_minus_adamw_balanced"] = Figure.of(gain, "points", len(own))
    kept_models, kept_figures, kept_note = _before(settings)
    about, *others = _notes(settings, dataset)
    every = kept_models | models
    return Result(
        "second-order",
        kept_figures | figures | shared,
        notes=(about + kept_note, *others),
        models={arm: every[arm] for arm in (BASELINE, *ARMS) if arm in every},
        headings=MEANS,
    )


def _before(settings: Config) -> tuple[dict[str, Any], dict[str, Figure], str]:
    """Return rows and figures of the arms that an earlier result has more, and a sentence."""
    if not settings.before:
        return {}, {}, ""
    written = read_json(settings.before)
    models = {arm: row for arm, row in written["models"].items() if arm not in settings.arms}
    kept = (*models, *(("eigen",) if "kfac" in models else ()))
    figures = {
        name: Figure(**{**figure, "spread": tuple(figure["spread"])})
        for name, figure in written["figures"].items()
        if name.split("_")[0] in kept
    }
    date = str(written["date"])[:10]
    return models, figures, f" {' and '.join(models)}: measured on {date} beside AdamW of then."


def _first_best(trainings: "Trainings", settings: Config, arm: str, rate: float) -> float:
    """Return the best accuracy on the first fold and seed."""
    return trainings.curve(arm, rate, settings.use[0], settings.seeds[0]).best


def tuned(rates: Sequence[float], best: Callable[[float], float]) -> float:
    """Return the rate of the best accuracy; where it is the first or last, further ones are tried.

    `rates` ascend and are a factor of 10^(1/2) apart. At most as many again are tried.
    """
    tried = {rate: best(rate) for rate in rates}
    while True:
        chosen = max(tried, key=lambda rate: tried[rate])
        factor = {max(tried): RATE_FACTOR, min(tried): 1 / RATE_FACTOR}.get(chosen)
        if factor is None or len(tried) >= 2 * len(rates) or len(rates) < 2:
            return chosen
        further = float(f"{chosen * factor:.3g}")
        tried[further] = best(further)


def _times(arm: str, own: "Sequence[Reached]", base: "Sequence[Reached]") -> dict[str, Figure]:
    """Return the figures of time and epochs to the baseline's accuracy, over the baseline's."""
    both = list(zip(own, base, strict=True))
    ratios = {
        "time": [a.seconds / b.seconds for a, b in both],
        "processor_time": [a.processor_seconds / b.processor_seconds for a, b in both],
        "epochs": [a.epochs / b.epochs for a, b in both],
    }
    return {f"{arm}_{key}_to_adamw": _mean_ratio(found) for key, found in ratios.items()}


def _mean_ratio(ratios: Sequence[float]) -> Figure:
    """Return the geometric mean of paired ratios with Student's interval of their logarithm."""
    interval = student_interval([math.log(ratio) for ratio in ratios])
    low, middle, high = (math.exp(x) for x in (interval.low, interval.value, interval.high))
    return Figure(middle, "of AdamW's", len(ratios), (low, high))


def _notes(settings: Config, dataset: Path) -> tuple[str, ...]:
    import torch

    start = "timm's weights" if settings.pretrained else "random weights"
    if settings.weights:
        start = f"the weights of {settings.weights.name}"
    before = [f"{arm} at {rate:g} was tuned before" for arm, rate in settings.rates.items()]
    where = (
        dataset.resolve().parent.name if settings.dataset else f"{settings.images} painted images"
    )
    return (
        f"{settings.model} at {settings.size} px from {start}, {where}, batch {settings.batch}, "
        f"{settings.epochs} epochs, {len(settings.use)} folds x {len(settings.seeds)} seeds, "
        f"paired, {torch.get_num_threads()} threads. Each optimizer was tuned over "
        f"{settings.trials} learning rates on the first fold and seed, and over further ones while "
        f"the best was the smallest or the largest{'; '.join(['', *before])}.",
        "X_time_to_adamw: seconds to the best balanced accuracy that tuned AdamW reaches on the "
        "validation images of the same fold and seed, over AdamW's; loading and validation are in "
        "both. X_processor_time_to_adamw: the same in seconds of the processor, all threads "
        "added. A run that does not reach it counts with its whole training, which flatters it: "
        "see X_reached_adamw. Where no run reaches it, there is no such figure.",
        f"kfac_overhead_step: {settings.steps} steps with K-FAC (factors every 10 steps, inverses "
        "every 100, labels drawn) over as many of the same SGD without, interleaved, while the "
        "network learns; median and quartiles. eigen_share_p4: the factors of "
        f"{settings.shared}, one of each shape timed alone, all eigenvectors of each, assigned "
        "to four ranks as K-FAC does; the slowest rank over the sum.",
    )
