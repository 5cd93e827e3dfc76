"""NT beside a transposed copy, product by product, and the tree that is learned from it."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.metrics import Interval, Statistic, bootstrap_interval, share_interval
from skindx_bench.gemm.learning import (
    FOLDS,
    LEAST_GAIN,
    MOST_THREADS,
    PRODUCTS,
    Device,
    ProductShape,
    ShapeTree,
    Sizes,
    TimedProduct,
    by_matrices,
    dtypes_of,
    gain,
    held_out_choices,
    learn,
    measure,
    shapes_of,
    transposed_wins,
)
from skindx_bench.harness.conditions import Conditions
from skindx_bench.harness.result import MEANS, Figure, Result

SMALLEST = ("seconds=60", "sizes=4", "largest=0.003", "threads=[1]")

_SELDOM_S = 60.0


class Config(Settings):
    """How long products are timed."""

    seconds: float = Field(42, gt=0, le=3600)
    """For timing products; learning and the rest take some seconds more."""
    more_s: float = Field(0, ge=0, le=7200)
    """For timing further products: the tree is judged by them, and does not learn of them."""
    sizes: int = Field(1000, ge=1)
    """Of each use of products at most so many: m, n, k and the blocks of a stack."""
    largest: float = Field(100.0, gt=0)
    """Products of more operations are left out, in thousands of millions."""
    threads: tuple[Annotated[int, Field(ge=1, le=MOST_THREADS)], ...] = ()
    """Of a CPU; none: one, and as many as this process has cores."""
    device: Device = "cpu"


def run(settings: Config) -> Result:
    """Time products, learn a tree, and say what it is worth on products it has not seen.

    Raises UserError where the time suffices for too few products, and for cuda without a GPU.
    """
    _check(settings.device)
    wanted = {name: own[: settings.sizes] for name, own in PRODUCTS.items()}
    sizes = [one for own in wanted.values() for one in own]
    shapes = [
        shape
        for shape in shapes_of(sizes, settings.device, settings.threads)
        if shape.operations <= settings.largest * 1e9
    ]
    # Without a clock's samples: this process's own seconds are counted.
    with Conditions(clock_mhz=lambda: None, every_s=_SELDOM_S) as conditions:
        result = _measured(settings, wanted, shapes)
    return replace(result, notes=(*result.notes, *_busy(conditions)))


def _measured(
    settings: Config, wanted: Mapping[str, Sequence[Sizes]], shapes: Sequence[ProductShape]
) -> Result:
    start = time.perf_counter()
    timed, turns = measure(shapes, settings.seconds, settings.device)
    if len(timed) < FOLDS:
        raise UserError(
            f"{len(timed)} products were timed in {settings.seconds:g} s, and a tree needs at "
            f"least {FOLDS}; give more seconds."
        )
    tree = learn(timed)
    fit_s = time.perf_counter() - start
    chosen = held_out_choices(timed)
    learned_of = len(timed)
    if settings.more_s:
        tried = {shape.matrices for shape in shapes[:turns]}
        rest = [shape for shape in shapes if shape.matrices not in tried]
        more, _ = measure(rest, settings.more_s, settings.device)
        chosen += [tree.transposes(one.shape) for one in more]
        timed = [*timed, *more]
    figures = _worth(timed, chosen) | {"fit_s": Figure(fit_s, "s", 1, (fit_s, fit_s))}
    return Result(
        "gemm",
        figures,
        _baselines(timed),
        notes=_notes(tree, learned_of, len(timed), len(shapes)),
        models=_by_use(timed, wanted),
        headings=MEANS,
    )


def _check(device: Device) -> None:

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device=cuda needs a GPU that torch can use; leave device at cpu.")


def _worth(timed: Sequence[TimedProduct], chosen: Sequence[bool]) -> dict[str, Figure]:
    """Return what is won by whom, with 95 % intervals over sizes."""
    groups_N = np.zeros(len(timed), dtype=int)
    for number, places in enumerate(by_matrices(timed).values()):
        groups_N[places] = number
    nt_N, copy_N = np.array([one.seconds for one in timed]).T
    taken_N = np.where(chosen, copy_N, nt_N)
    regrets_N = np.array([_regret(*pair) for pair in zip(timed, chosen, strict=True)])
    wins = share_interval([not transposed_wins(one) for one in timed], groups_N)

    def mean(logs_N: np.ndarray) -> Interval:
        """Return e to the mean of logarithms."""
        low, high = float(logs_N.min()), float(logs_N.max())
        found = bootstrap_interval(Statistic.mean(logs_N, low, high), groups_N)
        return Interval(*(math.exp(value) for value in (found.value, found.low, found.high)))

    def faster(other_N: np.ndarray) -> Figure:
        return _figure(mean(np.log(other_N / taken_N)), "×", len(timed))

    lost = mean(regrets_N)
    lost = Interval(lost.value - 1, lost.low - 1, lost.high - 1)
    return {
        "nt_wins": _figure(wins, "of the products", len(timed)),
        "nt_regret": _figure(lost, "of the oracle's time", len(timed)),
        "nt_over_always_nt": faster(nt_N),
        "nt_over_always_transposed": faster(copy_N),
    }


def _regret(timed: TimedProduct, transposed: bool) -> float:
    """Return log(time of what is chosen / time of the oracle).

    The oracle sees half of the rounds, and both are judged by the other half: an oracle that is
    judged by what it saw takes each chance of a noisy machine for a gain.
    """
    logs = []
    for seen, fresh in (timed.halves, timed.halves[::-1]):
        oracle = int(seen.seconds[1] < seen.seconds[0])
        logs.append(math.log(fresh.seconds[transposed] / fresh.seconds[oracle]))
    return statistics.fmean(logs)


def _figure(found: Interval, unit: str, count: int) -> Figure:
    return Figure.of(found, unit, count)


def _baselines(timed: Sequence[TimedProduct]) -> dict[str, Figure]:
    sums = {
        "all products by NT": sum(one.seconds[0] for one in timed),
        "all by a transposed copy": sum(one.seconds[1] for one in timed),
        "each by the faster": sum(min(one.seconds) for one in timed),
    }
    return {name: Figure(value, "s", len(timed), (value, value)) for name, value in sums.items()}


def _by_use(
    timed: Sequence[TimedProduct], wanted: Mapping[str, Sequence[Sizes]]
) -> dict[str, dict[str, object]]:
    """Return for each use how often NT wins, and how far apart the two are."""
    found: dict[str, dict[str, object]] = {}
    for name, sizes in wanted.items():
        own = [one for one in timed if one.shape.matrices in set(sizes)]
        if own:
            speeds = [math.exp(gain(one)) for one in own]
            found[name] = {
                "products": len(own),
                "nt_wins": sum(not transposed_wins(one) for one in own),
                "transposed_over_nt": [min(speeds), statistics.median(speeds), max(speeds)],
            }
    return found


def _notes(tree: ShapeTree, learned_of: int, timed: int, asked: int) -> tuple[str, ...]:
    decided = "NT always" if tree.always_nt else f"a tree of {tree.leaves} leaves"
    without = "" if len(dtypes_of("cpu")) > 1 else " This CPU has no bf16: fp32 alone was timed."
    return (
        f"{timed} of {asked} products (sizes, types and threads) were timed in turns until the "
        f"time was over; others were too long or had no turn. Learned of {learned_of}: {decided}."
        + without,
        f"nt_wins: products in which the copy is not {LEAST_GAIN:g} times as fast, or is slower in "
        "one of four rounds. nt_regret: time of the choice over that of the oracle, less one; the "
        "choice is of trees that were learned without the product's sizes, the oracle sees half of "
        "the rounds, and the other half judges both. nt_over_...: the same for other choices. All "
        "three are geometric means. Times are the least of their rounds: of the processor on one "
        "thread, of the clock on several.",
    )


def _busy(conditions: Conditions) -> tuple[str, ...]:
    return tuple(f"While this was measured, {mark}." for mark in conditions.marks)
