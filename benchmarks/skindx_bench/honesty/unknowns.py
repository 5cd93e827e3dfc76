"""Diseases, cameras and lights that a bundle never saw, by detectors on frozen features.

Each class of HAM10000 is left out in turn, of all that is fitted: of the linear head, the detectors
and the calibration. Features are those of an ImageNet network that nobody trained further, and, of
a bundle that is given, those of its members. Detectors are compared on three quarters of the
lesions: what they refuse of left-out classes and of painted shifts (colour cast, gamma, blur,
vignette) there chooses one. The last quarter and isic9's other images are looked at once.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.imaging.decode import decode
from skindx.metrics import Interval, Ranked, bootstrap_interval, share_interval
from skindx.models.bundle.bundle import open_bundle
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier, load_weights
from skindx.models.classifier.preprocess import Preprocess, framed_square
from skindx.models.ood.ood_check import OodCheck, combine, fit_check, p_values
from skindx.models.ood.ood_features import Features, Singles, TrainingFeatures, image_statistics
from skindx_bench.harness.result import Figure, Result
from skindx_bench.honesty.modality import elsewhere, ham, table
from skindx_bench.honesty.ood_candidates import KINDS

# N = images, D = dimensions, C = classes, K = detectors

CANDIDATES: tuple[tuple[str, ...], ...] = (
    *((kind,) for kind in ("energy", "react", "vim", "knn", "mahalanobis")),
    *((kind,) for kind in ("relative_mahalanobis", "image", "image_mixture")),
    ("mahalanobis", "image_mixture"),
    ("knn", "image_mixture"),
    ("vim", "image_mixture"),
    ("relative_mahalanobis", "image_mixture"),
)
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "tf_efficientnet_lite0": ("tf_efficientnet_lite0.fp16.safetensors", {}),
    "tf_efficientnet_lite1": ("tf_efficientnet_lite1.fp16.safetensors", {}),
    "tf_efficientnet_lite2": ("tf_efficientnet_lite2.fp16.safetensors", {}),
    "mobilenetv2_100": ("mobilenetv2_100_qat.pth", {"pad_type": "same", "bn_eps": 1e-3}),
}
_PARTS = {"fit": 0.5, "calibration": 0.15, "dev": 0.1, "test": 0.25}
_AXES = 256
_PENALTIES = (0.01, 0.1, 1.0)
_RATES = (0.02, 0.05, 0.1, 0.2)
_SEED, _DRAWS, _BATCH = 0, 300, 32

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Candidate = tuple[str, ...]
Scores = dict[Candidate, Floats]


def _vignette(pixels: Pixels) -> Pixels:
    height, width = pixels.shape[:2]
    rows, columns = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    shade_HW1 = np.clip(1.25 - 0.75 * np.hypot(rows, columns), 0, 1)[..., None]
    shaded: Pixels = (pixels * shade_HW1).astype(np.uint8)
    return shaded


SHIFTS: dict[str, Callable[[Pixels], Pixels]] = {
    "warm light": lambda pixels: np.clip(pixels * (1.15, 1.0, 0.8), 0, 255).astype(np.uint8),
    "cold light": lambda pixels: np.clip(pixels * (0.85, 1.0, 1.2), 0, 255).astype(np.uint8),
    "gamma 1.6": lambda pixels: (255 * (pixels / 255) ** 1.6).astype(np.uint8),
    "blur": lambda pixels: cv2.GaussianBlur(pixels, (0, 0), min(pixels.shape[:2]) / 100),
    "vignette": _vignette,
}


@dataclass(frozen=True)
class Part:
    """Features of some images without logits, their classes and groups."""

    features: Features
    labels_N: NDArray[np.str_]
    groups_N: NDArray[np.str_]

    def of(self, rows_N: NDArray[np.bool_]) -> "Part":
        """Return some of the images."""
        return Part(self.features.select(rows_N), self.labels_N[rows_N], self.groups_N[rows_N])


Embed = Callable[[Sequence[Pixels]], Singles]


def frozen(name: str, weights: Path, side: int) -> Embed:
    """Return a function from images to the pooled features of an untouched network."""
    import torch

    file, arguments = NETWORKS[name]
    view = Preprocess(size=side, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    settings = ClassifierSettings(model=name, model_args=arguments, preprocess=view)
    net = build_classifier(settings, classes=1).eval()
    load_weights(net, weights / file)

    def embed(images: Sequence[Pixels]) -> Singles:
        squares = torch.from_numpy(np.stack([framed_square(image, view) for image in images]))
        with torch.inference_mode():
            pooled_ND: Singles = net.forward_pooled(net.forward_features(squares)).float().numpy()
        return pooled_ND

    return embed


def tuned(bundle: Path) -> Embed:
    """Return the same of a bundle's members, side by side."""
    ensemble = open_bundle(bundle).ensemble()
    return lambda images: np.concatenate(
        ensemble.predict_with_features(list(images)).pooled_MND, axis=1
    )


def kept(
    file: Path, embed: Callable[[], Embed], images: Callable[[], Iterator[Pixels]]
) -> Features:
    """Return features from a file, computed and written there where it is not."""
    if not file.is_file():
        ready, pooled, statistics, batch = embed(), list[Singles](), list[Singles](), list[Pixels]()
        for image in images():
            batch.append(image)
            if len(batch) == _BATCH:
                pooled.append(ready(batch))
                statistics.append(image_statistics(batch))
                batch = []
        if batch:
            pooled.append(ready(batch))
            statistics.append(image_statistics(batch))
        file.parent.mkdir(parents=True, exist_ok=True)
        halves = np.concatenate(pooled).astype(np.float16)
        np.savez(file, features=halves, image=np.concatenate(statistics))
    with np.load(file) as arrays:
        return Features((arrays["features"].astype(np.float32),), (), arrays["image"])


def divided(groups_N: NDArray[np.str_]) -> NDArray[np.str_]:
    """Return the part of each image, N; no group is divided."""
    groups, index_N = np.unique(groups_N, return_inverse=True)
    ends = np.cumsum(list(_PARTS.values())) * len(groups)
    places_G = np.random.default_rng(_SEED).permutation(len(groups))
    part_G = np.array(list(_PARTS))[np.searchsorted(ends, places_G, side="right").clip(max=3)]
    parts_N: NDArray[np.str_] = part_G[index_N]
    return parts_N


def head(part: Part, penalty: float) -> tuple[Singles, Singles]:
    """Return weights C x D and biases C of a linear head, fitted in the leading directions."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression

    pooled_ND = part.features.pooled_MND[0]
    axes = PCA(min(_AXES, *(side - 1 for side in pooled_ND.shape)), random_state=_SEED)
    reduced_NA = axes.fit_transform(pooled_ND)
    scale = float(reduced_NA.std())
    fitted = LogisticRegression(C=penalty, max_iter=300, class_weight="balanced")
    fitted.fit(reduced_NA / scale, part.labels_N)
    weights_CD = fitted.coef_ @ axes.components_ / scale
    biases_C = fitted.intercept_ - weights_CD @ axes.mean_
    return weights_CD.astype(np.float32), biases_C.astype(np.float32)


def best_penalty(fit: Part, dev: Part) -> float:
    """Return the penalty of the head with the highest balanced accuracy on `dev`."""
    from sklearn.metrics import balanced_accuracy_score

    classes_C = np.unique(fit.labels_N)

    def score(penalty: float) -> float:
        weights_CD, biases_C = head(fit, penalty)
        logits_NC = dev.features.pooled_MND[0] @ weights_CD.T + biases_C
        return float(balanced_accuracy_score(dev.labels_N, classes_C[logits_NC.argmax(axis=1)]))

    return max(_PENALTIES, key=score)


@dataclass(frozen=True)
class Fitted:
    """A head and a check of every candidate, fitted without one class."""

    weights_CD: Singles
    biases_C: Singles
    checks: dict[Candidate, OodCheck]

    @classmethod
    def of(cls, fit: Part, calibration: Part, penalty: float) -> "Fitted":
        """Fit all of it. Raises UserError for too few images."""
        weights_CD, biases_C = head(fit, penalty)
        bare = cls(weights_CD, biases_C, {})
        learned = TrainingFeatures(bare.with_logits(fit), fit.labels_N, (weights_CD,), (biases_C,))
        held = bare.with_logits(calibration)
        kinds = sorted({kind for candidate in CANDIDATES for kind in candidate})
        alone = {kind: fit_check([KINDS[kind]], learned, held) for kind in kinds}
        checks = {}
        for candidate in CANDIDATES:
            parts = [check for kind in candidate if (check := alone[kind]) is not None]
            if len(parts) < len(candidate):
                raise UserError("too few images to fit the detectors; give all of HAM10000.")
            checks[candidate] = OodCheck(
                tuple(part.detectors[0] for part in parts),
                np.concatenate([part.scores_NK for part in parts], axis=1),
            )
        return cls(weights_CD, biases_C, checks)

    def with_logits(self, part: Part) -> Features:
        """Return the features of images with the head's logits."""
        logits_NC = part.features.pooled_MND[0] @ self.weights_CD.T + self.biases_C
        return replace(part.features, logits_MNC=(logits_NC.astype(np.float32),))

    def scores(self, part: Part) -> Scores:
        """Return each candidate's scores N x K."""
        features = self.with_logits(part)
        return {candidate: check.scores(features) for candidate, check in self.checks.items()}

    def ranked(self, scores: Scores, candidate: Candidate) -> Floats:
        """Return one score of each image, N."""
        return combine(scores[candidate], self.checks[candidate].scores_NK)

    def refused(self, scores: Scores, candidate: Candidate, *rates: float) -> list[Bools]:
        """Return which images are refused, N, at each rate; the first: the one promised."""
        check = self.checks[candidate]
        p_values_N = p_values(check.scores_NK, scores[candidate])
        return [p_values_N <= rate for rate in (check.rate, *rates)]


def separation(own_N: Floats, other_N: Floats, own: Part, other: Part) -> list[float]:
    """Return the AUROC of another kind's scores against one's own, with grouped intervals."""
    scores_N = np.concatenate([own_N, other_N])
    truth_N = np.repeat([0, 1], [len(own_N), len(other_N)])
    ranked = Ranked.auroc(np.stack([-scores_N, scores_N], axis=1), truth_N)
    groups_N = np.concatenate([own.groups_N, other.groups_N])
    return _plain(bootstrap_interval(ranked, groups_N, draws=_DRAWS))


def _plain(interval: Interval) -> list[float]:
    return [interval.value, interval.low, interval.high]


SMALLEST = ("most=600", "shifted=10")


class Config(Settings):
    """Images, the network, and a folder in which features are kept."""

    real: Path = Field(default_factory=lambda: Path(os.environ.get("SKINDX_REAL", "real")))
    """Folder with ham10000, isic9 and weights."""
    network: str = Field("tf_efficientnet_lite0", pattern=f"^({'|'.join(NETWORKS)})$")
    side: int = Field(128, ge=64, le=512)
    bundle: Path | None = None
    """A bundle whose members' features take the network's place: fine-tuned ones."""
    out: Path = Path("runs/unknowns")
    most: int = Field(10**6, ge=200)
    """Images of each source, at most."""
    shifted: int = Field(200, ge=10)
    """Images that each shift is painted on."""


def run(settings: Config) -> Result:
    """Compute the features, fit without each class, choose, and look at the test once."""
    name = settings.bundle.parent.parent.name if settings.bundle else settings.network
    key = f"{name}-{settings.side}"

    def embed() -> Embed:
        if settings.bundle:
            return tuned(settings.bundle)
        return frozen(settings.network, settings.real / "weights", settings.side)

    def features(what: str, files: Sequence[Path], change: Callable[[Pixels], Pixels]) -> Features:
        def images() -> Iterator[Pixels]:
            return (change(decode(file.read_bytes())) for file in files)

        return kept(settings.out / f"{what}-{len(files)}-{key}.npz", embed, images)

    rows = ham(settings.real)[: settings.most]
    labels_N = np.array([row["dx"] for row in table(settings.real / "ham10000" / "index.csv")])
    files, groups = zip(*rows, strict=True)
    everything = Part(
        features("ham10000", files, lambda pixels: pixels), labels_N[: len(rows)], np.array(groups)
    )
    parts_N = divided(everything.groups_N)
    parts = {part: everything.of(parts_N == part) for part in _PARTS}
    dev_N = np.flatnonzero(parts_N == "dev")[: settings.shifted]
    shifts = {
        shift: Part(
            features(f"ham10000 {shift}", [files[n] for n in dev_N], change),
            everything.labels_N[dev_N],
            everything.groups_N[dev_N],
        )
        for shift, change in SHIFTS.items()
    }
    other_files, other_groups = zip(*elsewhere(settings.real)[: settings.most], strict=True)
    camera = Part(
        features("isic9", other_files, lambda pixels: pixels),
        np.array(["isic9"] * len(other_files)),
        np.array(other_groups),
    )
    penalty = best_penalty(parts["fit"], parts["dev"])
    classes = sorted(set(everything.labels_N.tolist()))
    left_out = {label: _left_out(parts, label, penalty) for label in classes}
    others = {**shifts, "isic9": camera}
    models = _whole(parts, others, Fitted.of(parts["fit"], parts["calibration"], penalty))
    figures: dict[str, Figure] = {}
    for candidate in CANDIDATES:
        title = "+".join(candidate)
        row = models[title]
        row["left_out"] = {label: found[candidate] for label, found in left_out.items()}
        dev = float(np.mean([row["left_out"][label]["dev"] for label in classes]))
        row["merit"] = (dev + row["painted"]) / 2
        areas = [row["left_out"][label]["test"][0] for label in classes]
        spread = (min(areas), max(areas))
        figures[f"{title}, left-out classes"] = Figure(float(np.mean(areas)), "", 7, spread)
        value, low, high = row["isic9"]
        figures[f"{title}, isic9"] = Figure(value, "", len(camera.groups_N), (low, high))
    chosen = max(models, key=lambda title: round(models[title]["merit"], 4))
    return Result(
        "unknowns",
        figures,
        notes=(
            f"{name} at {settings.side} px, head penalty {penalty}; `left-out classes`: the mean "
            "AUROC of the classes, each left out, and the least and the greatest; `isic9`: of "
            f"other cameras, with its 95 % interval. Chosen on the training part: {chosen}.",
        ),
        models={**models, "chosen": {"detector": chosen, "features": key, "penalty": penalty}},
        headings=("AUROC", "from, to"),
    )


def _whole(parts: dict[str, Part], others: dict[str, Part], fitted: Fitted) -> dict[str, Any]:
    """Return figures of each candidate that knows all classes: shifts on dev, isic9 on test."""
    dev, test = fitted.scores(parts["dev"]), fitted.scores(parts["test"])
    asked = {kind: fitted.scores(part) for kind, part in others.items()}
    camera = others["isic9"]
    models: dict[str, Any] = {}
    for candidate in CANDIDATES:
        ranked = {kind: fitted.ranked(scores, candidate) for kind, scores in asked.items()}
        own_N = fitted.ranked(dev, candidate)
        shifts = {kind: _area(own_N, found_N) for kind, found_N in ranked.items()}
        del shifts["isic9"]
        tested_N = fitted.ranked(test, candidate)
        rates = (fitted.checks[candidate].rate, *_RATES)
        refused = (fitted.refused(scores, candidate, *_RATES) for scores in (test, asked["isic9"]))
        models["+".join(candidate)] = {
            "painted": float(np.mean(list(shifts.values()))),
            "shifts": shifts,
            "isic9": separation(tested_N, ranked["isic9"], parts["test"], camera),
            "curve": [
                {
                    "promised": rate,
                    "own": _plain(share_interval(own_out_N, parts["test"].groups_N)),
                    "isic9": _plain(share_interval(out_N, camera.groups_N)),
                }
                for rate, own_out_N, out_N in zip(rates, *refused, strict=True)
            ],
        }
    return models


def _left_out(parts: dict[str, Part], label: str, penalty: float) -> dict[Candidate, Any]:
    """Return each candidate's AUROC of a left-out class on dev, and on test with its interval."""
    known = {name: part.of(part.labels_N != label) for name, part in parts.items()}
    away = {name: part.of(part.labels_N == label) for name, part in parts.items()}
    fitted = Fitted.of(known["fit"], known["calibration"], penalty)
    seen = [fitted.scores(away[name]) for name in ("fit", "calibration", "dev")]
    dev, test, last = (fitted.scores(part) for part in (known["dev"], known["test"], away["test"]))
    rows = {}
    for candidate in CANDIDATES:
        unseen_N = np.concatenate([fitted.ranked(scores, candidate) for scores in seen])
        own_N, other_N = (fitted.ranked(scores, candidate) for scores in (test, last))
        (out_N,) = fitted.refused(last, candidate)
        rows[candidate] = {
            "dev": _area(fitted.ranked(dev, candidate), unseen_N),
            "test": separation(own_N, other_N, known["test"], away["test"]),
            "refused": _plain(share_interval(out_N, away["test"].groups_N)),
            "n": len(away["test"].groups_N),
        }
    return rows


def _area(own_N: Floats, other_N: Floats) -> float:
    from sklearn.metrics import roc_auc_score

    truth_N = np.repeat([0, 1], [len(own_N), len(other_N)])
    return float(roc_auc_score(truth_N, np.concatenate([own_N, other_N])))
