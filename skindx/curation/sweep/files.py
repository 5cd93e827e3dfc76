"""A sweep as JSON, as CSV, as a plot, and in plain sentences."""

import csv
import dataclasses
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from skindx.core.atomic_files import atomic_file, write_json, write_text
from skindx.curation.sweep.sweep import Sweep
from skindx.evaluation.figures import bounds, percent, points

if TYPE_CHECKING:
    from rich.console import Console

JSON, TABLE, PLOT = "sweep.json", "sweep.csv", "sweep.png"

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito 2008: they differ for every kind of colour vision."""


def write_sweep(folder: Path, sweep: Sweep) -> None:
    """Write sweep.json, sweep.csv and sweep.png; other files in the folder stay."""
    write_text(folder / TABLE, table(sweep))
    with atomic_file(folder / PLOT) as temporary:
        plot(sweep, temporary)
    write_json(folder / JSON, dataclasses.asdict(sweep))


def table(sweep: Sweep) -> str:
    """Return one line a point as CSV; accuracies and losses are shares."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    head = ["hashes", "radius", "kept", "duplicates", "contradicted"]
    head += [f"{name}{end}" for name in ("accuracy", "loss") for end in ("", "_low", "_high")]
    writer.writerow([*head, "random_mean"])
    for point in sweep.points:
        figures = [point.accuracy, point.loss]
        shares = [value for f in figures for value in (f.value, f.low, f.high)]
        counts = [point.kept, point.duplicates, point.contradicted]
        rounded = [f"{share:.4f}" for share in [*shares, np.mean(point.random)]]
        writer.writerow([point.hashes, point.radius, *counts, *rounded])
    return buffer.getvalue()


def print_sweep(sweep: Sweep, console: "Console") -> None:
    """Print the points as a table, and what they mean in plain sentences."""
    from rich.table import Table

    out = Table("hashes", "bits", "kept", "duplicates", "contradicted", "top-1", "loss", "random")
    for column in out.columns[1:]:
        column.justify = "right"
    for point in sweep.points:
        out.add_row(
            point.hashes,
            str(point.radius),
            str(point.kept),
            str(point.duplicates),
            str(point.contradicted),
            percent(point.accuracy),
            f"{points(point.loss.value)} {bounds(point.loss, 'points')}",
            percent(float(np.mean(point.random))),
        )
    console.print(out)
    for line in lines(sweep):
        console.print(line, markup=False, highlight=False)


def lines(sweep: Sweep) -> Iterator[str]:
    """Tell what was found, the choice last."""
    yield (
        f"{sweep.train} training images, {sweep.test} test images; top-1 with all of them "
        f"{percent(sweep.accuracy)} {bounds(sweep.accuracy)}."
    )
    chosen = sweep.chosen
    if chosen is None:
        yield f"Every threshold loses more than {100 * sweep.loss:.1f} points: keep all images."
        return
    yield (
        f"Smallest set that loses at most {100 * sweep.loss:.1f} points: {chosen.hashes} within "
        f"{chosen.radius} bits, {chosen.kept} of {sweep.train} images, loss "
        f"{points(chosen.loss.value)} {bounds(chosen.loss, 'points')}."
    )
    if chosen.loss.high > sweep.loss:
        yield "The interval reaches beyond what is accepted: this test split cannot promise it."
    if chosen.accuracy.value <= max(chosen.random):
        yield "As many images taken at random can do as well: the gain is not the hash's."
    if chosen.contradicted > chosen.duplicates:
        yield (
            "Most of what goes are look-alikes with different labels: at this threshold the hash "
            "no longer finds duplicates."
        )


def plot(sweep: Sweep, path: Path) -> None:
    """Draw size against threshold, and accuracy against size with its interval, as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained", dpi=120)
    size, accuracy = figure.subplots(1, 2)
    for index, name in enumerate(dict.fromkeys(point.hashes for point in sweep.points)):
        ours = [point for point in sweep.points if point.hashes == name]
        kept = [point.kept / sweep.train for point in ours]
        style = {"color": _COLOURS[index % len(_COLOURS)], "marker": "o", "markersize": 4}
        size.plot([point.radius for point in ours], kept, label=name, **style)
        accuracy.plot(kept, [point.accuracy.value for point in ours], label=name, **style)
    every = sorted(sweep.points, key=lambda point: point.kept)
    x = [point.kept / sweep.train for point in every]
    at_random = np.array([point.random for point in every])
    accuracy.plot(x, at_random.mean(axis=1), color="#888888", label="as many at random")
    accuracy.fill_between(
        x, at_random.min(axis=1), at_random.max(axis=1), color="#888888", alpha=0.25, linewidth=0
    )
    all_of_them = sweep.accuracy
    accuracy.axhline(all_of_them.value, color="#000000", linewidth=0.8, linestyle="--")
    accuracy.axhspan(all_of_them.low, all_of_them.high, color="#000000", alpha=0.06, linewidth=0)
    size.set(xlabel="threshold (bits of 64)", ylabel="share of training images kept")
    size.set_ylim(bottom=0)
    accuracy.set(xlabel="share of training images kept", ylabel="top-1 on the test split")
    accuracy.set_title("dashed: all images, with their 95 % interval", fontsize=9)
    for axis in (size, accuracy):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(path, format="png")
