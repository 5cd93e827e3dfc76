"""How many lesions are found again in a second photo of a painted body.

Composites prove the pipeline, not medicine: a painted skin has the same pores in both photos.
"""

from dataclasses import replace

import numpy as np
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.metrics.share_intervals import proportion_interval
from skindx.scan.compare.changes import changes, match
from skindx.scan.compare.registration import register
from skindx_bench.harness.result import MEANS, Figure, Result
from skindx_bench.scan.bodies import (
    Body,
    Camera,
    paint_body,
    seen_again,
    view_of,
    with_other_skin,
)

SMALLEST = ("bodies=1", "lesions=20", "side=500")


class Config(Settings):
    """Painted bodies that a camera sees twice."""

    bodies: int = Field(20, ge=1)
    lesions: int = Field(60, ge=10)
    """On each body."""
    side: int = Field(1600, ge=400)
    """Pixels of the longer side."""
    jitter: float = Field(0.04, ge=0, le=0.2)
    """Standard deviation of a detector's edges, as a share of a lesion's size."""
    growth: float = Field(1.5, gt=1)
    """Of every tenth lesion, in diameter."""
    seed: int = 0


def cameras(rng: np.random.Generator) -> dict[str, Camera]:
    """Return the second photos: turned, nearer and tilted; or of skin that moved as well."""
    sign = rng.choice([-1, 1], 3)
    return {
        "camera": Camera(15.0 * sign[0], 1.2 ** float(sign[1]), 0.15 * float(sign[2]), noise=0.015),
        "warped": Camera(5.0 * sign[0], 1.1 ** float(sign[1]), 0.05, 0.012, 0.3, 0.03),
        "years": Camera(5.0 * sign[0], 1.1 ** float(sign[1]), 0.05, 0.004, 0.3, 0.03),
    }


def run(settings: Config) -> Result:
    """Paint, register and match; shares are over lesions that both photos show whole."""
    counts: dict[str, list[bool]] = {}

    def note(key: str, hits: list[bool]) -> None:
        counts.setdefault(key, []).extend(hits)

    for number in range(settings.bodies):
        rng = np.random.default_rng([settings.seed, number])
        size_wh = settings.side, 3 * settings.side // 4
        body = paint_body(rng, settings.lesions, size_wh)
        for name, camera in cameras(rng).items():
            later = with_other_skin(rng, body) if name == "years" else body
            for key, hits in _seen_again(rng, (body, later), camera, settings).items():
                note(f"{name}_{key}", hits)
        other = paint_body(rng, settings.lesions, size_wh)
        note("others_refused", [_refused(rng, body, other, settings)])
    figures = {key: _figure(hits) for key, hits in counts.items()}
    notes = (
        f"{settings.bodies} painted bodies with {settings.lesions} lesions, {settings.side} "
        f"pixels along the longer side, edges of outlines off by {settings.jitter:.0%}. Composites "
        f"prove the pipeline, not medicine.",
        "camera: turned by 15°, 20 % nearer or farther, tilted; warped: turned by 5°, 10 % nearer "
        "or farther, the skin moved smoothly, other light and noise; years: the same lesions on "
        "skin that has nothing else in common, moved less; others: another body.",
        "matched: share of lesions in both photos whose partner is the right one; wrong: "
        "share with a wrong partner; grown: every tenth lesion is "
        f"{settings.growth:g} times as wide.",
    )
    return Result("scan-compare", figures, notes=notes, headings=MEANS)


def _seen_again(
    rng: np.random.Generator, bodies: tuple[Body, Body], camera: Camera, settings: Config
) -> dict[str, list[bool]]:
    body, later = bodies
    again = seen_again(rng, later, camera)
    grows_N = np.arange(len(body.sizes_N)) % 10 == 0
    # Growth is in the outlines alone: where lesions lie does not depend on it.
    grown = replace(again, sizes_N=again.sizes_N * np.where(grows_N, settings.growth, 1))
    before = view_of(rng, body, settings.jitter)
    after = view_of(rng, grown, settings.jitter)
    shared = {row["rank"] for row in before.rows} & {row["rank"] for row in after.rows}
    try:
        matched = match(before, after, register(before, after))
    except UserError:
        return {"registered": [False], "matched": [False] * len(shared)}
    partners = {
        before.rows[own]["rank"]: after.rows[other]["rank"] for own, other in matched.pairs_N2
    }
    right = {lesion for lesion in shared if partners.get(lesion) == lesion}
    listed = {
        change.before["rank"]: change.kind
        for change in changes(before, after, matched)
        if change.before and change.after
    }
    return {
        "registered": [True],
        "matched": [lesion in right for lesion in shared],
        "wrong": [partners.get(lesion, lesion) != lesion for lesion in shared],
        "grown_found": [listed[lesion] == "grown" for lesion in right if grows_N[lesion]],
        "grown_wrongly": [listed[lesion] == "grown" for lesion in right if not grows_N[lesion]],
    }


def _refused(rng: np.random.Generator, body: Body, other: Body, settings: Config) -> bool:
    try:
        register(view_of(rng, body, settings.jitter), view_of(rng, other, settings.jitter))
    except UserError:
        return True
    return False


def _figure(hits: list[bool]) -> Figure:
    """Return a share in per cent with its exact 95 % interval."""
    share = proportion_interval(sum(hits) / len(hits) if hits else 0.0, len(hits))
    low, high = (100 * share.low, 100 * share.high) if hits else (0.0, 100.0)
    return Figure(100 * share.value if hits else 0.0, "%", len(hits), (low, high))
