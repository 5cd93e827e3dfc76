"""How often two photos are asked about as two lesions, where they are and where they are not.

Pairs of photos of one lesion, and photos of two lesions, of which each lesion is in one pair. The
rows of the bundle's release evaluation say which photos are of the test split and refused, and
what is answered; the networks see the photos again for their embeddings.
"""

import hashlib
import itertools
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.diagnosis.conclusion import are_sure_of_others
from skindx.diagnosis.predictor import Predictor
from skindx.evaluation.release import Part, read_release
from skindx.imaging.decode import decode
from skindx.metrics import share_interval
from skindx_bench.harness.result import MEANS, Figure, Result

# N = photos, D = dimensions, C = classes

SMALLEST = ("most=8",)
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7)
_BATCH, _SEED = 32, 0

Pairs = list[tuple[int, int]]


class Config(Settings):
    """The bundle with its release, and the images of its test split."""

    bundle: Path = Path("models/ham10000/skindx_ham10000/bundle")
    """Its release evaluation is in the folder `release` beside it."""
    images: Path = Field(
        default_factory=lambda: Path(os.environ.get("SKINDX_REAL", "real")) / "ham10000/images"
    )
    """A folder with the images of the split; those of others in it are not read twice."""
    most: int | None = Field(None, ge=4)
    """At most so many photos; none: all that are not refused."""


def run(settings: Config) -> Result:
    """Measure each threshold. Raises UserError for a folder that lacks images of the split."""
    release = read_release(settings.bundle.with_name("release"))
    part = release.parts["test"]
    files = {hashlib.sha256(one.read_bytes()).hexdigest(): one for one in _files(settings.images)}
    passed = _passed(part)[: settings.most]
    records, answers = [part[0][n] for n in passed], part[2]
    missing = [record.sha256 for record in records if record.sha256 not in files]
    if missing:
        raise UserError(
            f"{settings.images} lacks {len(missing)} images of the test split; name the folder "
            "that has them: --set images=FOLDER."
        )
    predictor = Predictor.load(settings.bundle)
    embeddings = []
    for start in range(0, len(records), _BATCH):
        pixels = [decode(files[one.sha256].read_bytes()) for one in records[start : start + _BATCH]]
        embeddings.append(predictor.ensemble.predict_with_features(pixels).embeddings_ND)
    figures = figures_of(
        np.concatenate(embeddings),
        answers.ensemble_NC[passed],
        [one.group for one in records],
        [one.label for one in records],
    )
    return Result(
        "lesion-pairs",
        figures,
        notes=(
            "Each figure is the share of pairs that are asked about: by the cosine of their "
            "embeddings, or because the photos are each sure of another class.",
            f"{len(records)} of {len(part[0])} photos of the test split, which no gate refuses.",
            "The photos have no dates, so this does not tell how often a lesion is asked about "
            "that changed over months.",
        ),
        models={"bundle": {"digest": release.origin.bundle_digest}},
        headings=MEANS,
    )


def _files(folder: Path) -> list[Path]:
    return sorted(one for one in folder.glob("*") if one.is_file())


def _passed(part: Part) -> list[int]:
    """Return the places of the photos that neither check of the bundle refuses."""
    return [
        n
        for n, one in enumerate(part[1])
        if not (one.other_modality or (one.ood and one.ood.p_value <= one.ood.rate))
    ]


def figures_of(
    embeddings_ND: NDArray[np.float32],
    probabilities_NC: NDArray[np.float64],
    lesions: Sequence[str],
    labels: Sequence[str],
) -> dict[str, Figure]:
    """Return the share of each kind of pair that is asked about, by threshold and without one."""
    of_lesion = defaultdict(list)
    for n, lesion in enumerate(lesions):
        of_lesion[lesion].append(n)
    one = [pair for own in of_lesion.values() for pair in itertools.combinations(own, 2)]
    order = np.random.default_rng(_SEED).permutation(len(of_lesion)).tolist()
    firsts = [own[0] for own in of_lesion.values()]
    shuffled = [firsts[n] for n in order]
    by_label = {key: [n for n in shuffled if labels[n] == key] for key in sorted(set(labels))}
    common = max(by_label, key=lambda key: len(by_label[key]))
    kinds = {
        "one lesion": one,
        f"one lesion, {common}": [pair for pair in one if labels[pair[0]] == common],
        "two lesions": _matched(shuffled),
        "two lesions of one diagnosis": [p for own in by_label.values() for p in _matched(own)],
        f"two lesions, {common}": _matched(by_label[common]),
    }
    figures = {}
    for kind, pairs in kinds.items():
        if not pairs:
            continue
        cosine_P = np.array([embeddings_ND[i] @ embeddings_ND[j] for i, j in pairs])
        sure_P = np.array([are_sure_of_others(probabilities_NC[[i, j]]) for i, j in pairs])
        groups = [lesions[i] for i, _ in pairs]
        asked = {"sure of others": sure_P}
        asked |= {f"below {least}": sure_P | (cosine_P < least) for least in THRESHOLDS}
        for way, asked_P in asked.items():
            share = share_interval(asked_P, groups)
            figures[f"{kind}: {way}"] = Figure.of(share, "%", len(pairs), 100)
    return figures


def _matched(places: Sequence[int]) -> Pairs:
    """Return each place with the next one, none twice."""
    return list(zip(places[::2], places[1::2], strict=False))
