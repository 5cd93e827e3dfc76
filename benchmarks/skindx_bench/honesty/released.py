"""What a stated mix brings a released bundle elsewhere, and what it refuses.

The first comes from the rows of its release evaluation, so no network runs and no image is looked
at again: the calibration error on an external dataset as it is, and with that dataset's mix of
diseases stated (`--prevalence`). Then the bundle is asked about pictures that are not what it
learned from.
"""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx import Model, load
from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.evaluation.answers import Answers
from skindx.evaluation.release import OWN, read_release
from skindx.metrics import confidence_interval, share_interval
from skindx.metrics.measures import Statistic
from skindx.models.combination import Prevalence
from skindx_bench.harness.result import MEANS, Figure, Result
from skindx_bench.honesty.modality import Row, boxes, clinical
from skindx_bench.honesty.no_skin_images import KINDS, WARM

# N = images, C = classes

SMALLEST = ("most=6", "painted=1", "draws=20")
_SEED = 0

Picture = tuple[Path | NDArray[np.uint8], str]
"""A file or pixels, and its group."""


class Config(Settings):
    """The bundle with its release, and the pictures it is asked about."""

    bundle: Path = Path("models/ham10000/skindx_ham10000/bundle")
    """Its release evaluation is in the folder `release` beside it."""
    real: Path = Field(default_factory=lambda: Path(os.environ.get("SKINDX_REAL", "real")))
    """Folder with fitzpatrick17k_16 and boxes."""
    most: int = Field(200, ge=2)
    """Photos of each source, drawn under one seed."""
    painted: int = Field(20, ge=1)
    """Pictures of each kind that are painted."""
    draws: int = Field(1000, ge=2)


def run(settings: Config) -> Result:
    """Measure all three."""
    release = read_release(settings.bundle.with_name("release"))
    figures: dict[str, Figure] = {}
    for name, (_, _, answers) in release.parts.items():
        if name not in OWN:
            figures |= stated(name, answers, settings.draws)
    model, refusals = load(settings.bundle), {}
    for name, pictures in _pictures(settings).items():
        own, refusals[name] = _refused(name, model, pictures)
        figures |= own
    return Result(
        "released",
        figures,
        notes=(
            "The network that tells clinical photos from dermoscopic ones was fitted on one of the "
            "two hosts of clinical photos.",
        ),
        models={"refusals": refusals, "bundle": {"digest": release.origin.bundle_digest}},
        headings=MEANS,
    )


def stated(name: str, answers: Answers, draws: int) -> dict[str, Figure]:
    """Return the calibration error elsewhere as it is, and with that dataset's mix stated."""
    if answers.calibration_images is None:
        raise UserError(
            "the bundle does not store the number of calibration images of each class; pack the "
            "bundle with this version of skindx."
        )
    keys = [one.key for one in answers.classes]
    counts_C = np.bincount(answers.truth_N, minlength=len(keys))
    given = dict(zip(keys, counts_C / counts_C.sum(), strict=True))
    counted = {key: answers.calibration_images.get(key, 0) for key in keys}
    stated_NC = Prevalence.from_shares(given, counted).correct(answers.ensemble_NC)
    figures = {}
    for way, probabilities_NC in (("as it is", answers.ensemble_NC), ("mix stated", stated_NC)):
        error = Statistic.calibration_error(probabilities_NC, answers.truth_N)
        found = confidence_interval(error, answers.groups_N, draws=draws)
        key = f"{name}: calibration error, {way}"
        figures[key] = Figure.of(found, "", len(answers.truth_N))
        right_N = probabilities_NC.argmax(axis=1) == answers.truth_N
        right = share_interval(right_N, answers.groups_N)
        figures[f"{name}: top-1, {way}"] = Figure.of(right, "%", len(right_N), 100)
    return figures


def _pictures(settings: Config) -> dict[str, list[Picture]]:
    """Return what the bundle did not learn from: clinical photos of two hosts, painted pictures."""
    rng = np.random.default_rng(_SEED)

    def some(rows: Sequence[Row]) -> list[Picture]:
        return [rows[n] for n in sorted(rng.permutation(len(rows))[: settings.most])]

    painted: dict[str, list[Picture]] = {
        f"painted: {kind}": [(paint(rng), str(n)) for n in range(settings.painted)]
        for kind, paint in {**KINDS, **WARM}.items()
    }
    return {
        "clinical photos, the host of the check": some(clinical(settings.real, fitted=True)),
        "clinical photos, another host": some(clinical(settings.real, fitted=False)),
        "dermoscopic photos with boxes": some(boxes(settings.real)),
        **painted,
    }


def _refused(
    name: str, model: Model, pictures: Sequence[Picture]
) -> tuple[dict[str, Figure], dict[str, int]]:
    """Return the share of pictures without an answer, and how many each gate refused."""
    gates = model.predict(photo for photo, _ in pictures)["refused"].to_pylist()
    share = share_interval([gate is not None for gate in gates], [group for _, group in pictures])
    counts = Counter(str(gate) for gate in gates if gate is not None)
    return {f"refused: {name}": Figure.of(share, "%", len(gates), 100)}, dict(counts)
