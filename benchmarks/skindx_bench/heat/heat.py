"""How often the hottest place of a class-token transformer's heat map is what decided its answer.

Small networks learn which patch is planted in noise. Of images that a network gets right, the
share is counted whose hottest token the patch covers, for our method and for its peers.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.settings_base import Settings
from skindx_bench.harness.clock import Figure
from skindx_bench.harness.result import MEANS, Result
from skindx_bench.heat.methods import PEERS, heats
from skindx_bench.heat.planted import PER_SIDE, TASKS, plant, train_reader

# K = networks, N = images

SMALLEST = ("seeds=1", "depths=[2]", "widths=[32]", "steps=30", "images=60", "least_right=0")

_DRAWS = 10_000


class Config(Settings):
    """A network for each task, depth, width and seed."""

    tasks: tuple[Literal["textures", "colours", "shifted"], ...] = Field(TASKS, min_length=1)
    seeds: int = Field(3, ge=1)
    depths: tuple[int, ...] = Field((2, 4, 6), min_length=1)
    widths: tuple[int, ...] = Field((48, 96), min_length=1)
    steps: int = Field(150, ge=1)
    images: int = Field(200, ge=30)
    """New images that each network is asked about."""
    least_right: float = Field(0.8, ge=0, le=1)
    """Networks that get a smaller share of the planted images right learned too little to ask."""


def run(settings: Config) -> Result:
    """Train the networks and count; a figure's interval is a bootstrap over networks."""
    shares: dict[str, dict[str, list[float]]] = {name: {} for name in ("ours", *PEERS)}
    left_out = 0
    for task, depth, width, seed in itertools.product(
        settings.tasks, settings.depths, settings.widths, range(settings.seeds)
    ):
        hits = _hits(settings, task, depth, width, seed)
        left_out += hits is None
        for name, hit_N in (hits or {}).items():
            for part in ("all", task, f"depth_{depth}"):
                shares[name].setdefault(part, []).append(float(hit_N.mean()))
    figures = {
        name if part == "all" else f"{name}_{part}": _figure(values)
        for name, parts in shares.items()
        for part, values in parts.items()
    }
    notes = (
        f"Vision transformers with a class token, {PER_SIDE**2} patches, depths "
        f"{settings.depths}, widths {settings.widths}, {settings.seeds} seeds, {settings.steps} "
        f"steps; tasks: {', '.join(settings.tasks)}.",
        f"Share of rightly answered images with a patch whose hottest token the patch covers to a "
        f"quarter or more; {settings.images} images a network, n networks.",
        f"{left_out} networks were left out, which got less than {settings.least_right:.0%} right.",
    )
    return Result("heat", figures, notes=notes, headings=MEANS)


def _hits(
    settings: Config, task: str, depth: int, width: int, seed: int
) -> Mapping[str, NDArray[np.bool_]] | None:
    """Return by method whether each right image's hottest token lies on the patch."""
    classifier = train_reader(seed, task, depth=depth, width=width, steps=settings.steps)
    asked = plant(np.random.default_rng([seed, 1]), settings.images, task)
    with torch.inference_mode():
        said_N = classifier(asked.images_NSS3).argmax(1)
    planted_N = asked.labels_N > 0
    right_N = (said_N == asked.labels_N) & planted_N
    if not right_N.any() or right_N.sum() < settings.least_right * planted_N.sum():
        return None
    found = heats(classifier, asked.images_NSS3[right_N], asked.labels_N[right_N].tolist())
    patch_NT = asked.patch_NT[right_N.numpy()]
    return {
        name: patch_NT[np.arange(len(patch_NT)), heat_NT.argmax(1)]
        for name, heat_NT in found.items()
    }


def _figure(shares_K: Sequence[float]) -> Figure:
    """Return the mean over networks in per cent with its 95 % interval, networks resampled."""
    values_K = 100 * np.array(shares_K)
    picked = np.random.default_rng(0).integers(len(values_K), size=(_DRAWS, len(values_K)))
    low, high = np.quantile(values_K[picked].mean(axis=1), [0.025, 0.975])
    return Figure(float(values_K.mean()), "%", len(values_K), (float(low), float(high)))
