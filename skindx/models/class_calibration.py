"""Probabilities calibrated class by class: vector scaling, and whether it gains beyond chance.

softmax(a z + b) with one slope a and a bias b of each class (Guo et al. 2017, "On calibration of
modern neural networks", section 4.2), fitted on images that no network trained on. Where a loss or
a sampling weighs classes, networks answer for a mix of diseases that nobody has, which a
temperature cannot mend: it keeps the order of the classes. A full matrix in the place of the slope
is left out: cross-fitted, its log loss was lower by 0.008 [-0.002, +0.018] on 896 images of
HAM10000, by 0.003 [0.000, 0.006] on 7,943, and higher by 0.002 on 1,418 of Fitzpatrick17k.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from skindx.core.settings_base import Settings
from skindx.data.splits.split import fold_groups
from skindx.metrics import Statistic, bootstrap_interval
from skindx.models.combination import COLDEST, HOTTEST, fit_temperature, log

# N = images, C = classes, F = classes with a bias of their own, K = folds, S = strengths

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]

FEWEST = 10
"""Fewest images of a class with which its bias is fitted; with less it stays at 0."""
FOLDS = 5
_SHOWN = 12
"""Most biases that one sentence names, the largest first."""
_STRENGTHS = (1e-2, 1e-3, 1e-4, 1e-5)
"""Weights of the penalty on the squared biases, relative to the mean log loss; never 0, because one
fold may hold all images of a class."""


class LossGain(Settings):
    """How much lower the log loss is, on images that nothing was fitted on."""

    value: float
    low: float
    high: float
    """95 % interval over groups."""
    images: int = Field(ge=1)
    groups: int = Field(ge=2)
    urgent_auroc: tuple[float, float, float] | None = Field(
        None, exclude_if=lambda change: change is None
    )
    """Change in the AUROC of the urgent risk, and its interval."""


def log_gain(with_NC: Floats, without_NC: Floats, truth_N: Ints) -> Statistic:
    """Return how much lower the log loss is, as a mean over images."""
    rows_N = np.arange(len(truth_N))
    gain_N = log(with_NC)[rows_N, truth_N] - log(without_NC)[rows_N, truth_N]
    reach = float(np.abs(gain_N).max()) or 1.0
    return Statistic.mean(gain_N, -reach, reach)


def loss_gain(
    with_NC: Floats, without_NC: Floats, truth_N: Ints, groups: ArrayLike
) -> LossGain | None:
    """Return how much lower the log loss is, paired over groups; None for a single group."""
    interval = bootstrap_interval(log_gain(with_NC, without_NC, truth_N), groups)
    if math.isnan(interval.low):
        return None
    return LossGain(
        value=interval.value,
        low=interval.low,
        high=interval.high,
        images=len(truth_N),
        groups=len(np.unique(np.asarray(groups))),
    )


def fold_numbers(truth_N: Ints, groups: Sequence[str], folds: int) -> NDArray[np.intp]:
    """Return the fold of each image, N: groups are whole, and classes spread evenly."""
    pairs = [(str(group), str(label)) for group, label in zip(groups, truth_N, strict=True)]
    fold_of = fold_groups(pairs, folds, 0)
    return np.array([fold_of[group] for group, _ in pairs], dtype=np.intp)


class ClassCalibration(Settings):
    """One slope for all classes, and a bias of each, in the order of the classes."""

    slope: float = Field(ge=COLDEST, le=HOTTEST, allow_inf_nan=False)
    biases: tuple[float, ...] = Field(min_length=2)
    """Bias of each class; their mean is 0, as a common shift does not change probabilities."""
    few: tuple[int, ...] = ()
    """Classes with fewer than ten images to fit on, by their number: their bias stays 0."""

    @model_validator(mode="after")
    def _of_these_classes(self) -> Self:
        if not np.isfinite(self.biases).all():
            raise ValueError("a bias is not a finite number")
        if any(not 0 <= column < len(self.biases) for column in self.few):
            raise ValueError(
                f"`few` names a class beyond the {len(self.biases)} classes that have a bias"
            )
        return self

    def logits(self, log_NC: NDArray[np.floating]) -> Floats:
        """Return a z + b of logits or log-probabilities z, N x C."""
        scores_NC: Floats = self.slope * np.asarray(log_NC, np.float64) + np.array(self.biases)
        return scores_NC

    def apply(self, log_NC: NDArray[np.floating]) -> Floats:
        """Return calibrated probabilities N x C of logits or log-probabilities N x C."""
        from scipy.special import softmax

        probabilities_NC: Floats = softmax(self.logits(log_NC), axis=-1)
        return probabilities_NC


@dataclass(frozen=True)
class CalibrationFit:
    """A calibration by class, and what it gains over a temperature on images of other folds."""

    fitted: ClassCalibration | None
    """The fitted calibration; None: there are too few images to fit biases on."""
    gain: LossGain | None
    """Reduction of the log loss, cross-fitted over groups."""
    by_class_NC: Floats | None = None
    """Cross-fitted probabilities by the calibration, N x C."""
    plain_NC: Floats | None = None
    """Cross-fitted probabilities by a temperature alone, N x C."""

    @property
    def crossed_NC(self) -> Floats | None:  # noqa: N802
        """Return the cross-fitted probabilities of what is kept."""
        return self.by_class_NC if self.kept else self.plain_NC

    @property
    def kept(self) -> ClassCalibration | None:
        """Return the calibration where the interval of its gain lies above 0."""
        return self.fitted if self.gain and self.gain.low > 0 else None

    @property
    def reason(self) -> str:
        """Return why it is kept or left out, in a sentence."""
        if self.gain is None:
            return (
                f"No calibration by class was fitted: it takes {FOLDS} groups of images, and two "
                f"classes of at least {FEWEST} images."
            )
        gain = self.gain
        change = f"{-gain.value:+.4f} [{-gain.high:+.4f}, {-gain.low:+.4f}]"
        return (
            f"On {gain.images} validation images a slope and biases of the classes change the "
            f"cross-fitted log loss of a temperature by {change}, so they are "
            f"{'kept' if self.kept else 'left out'}."
        )

    def served(self, probabilities_NC: Floats) -> Floats:
        """Return probabilities N x C by what is kept; to the bit as they are where nothing is."""
        return self.kept.apply(log(probabilities_NC)) if self.kept else probabilities_NC

    def words(self, classes: Sequence[str], expected_C: Floats | None = None) -> str:
        """Return the reason and the biases, beside those that the members' recipes let expect."""
        if self.fitted is None:
            return self.reason
        expect = [""] * len(classes) if expected_C is None else [f" ({e:+.2f})" for e in expected_C]
        biases = list(zip(classes, self.fitted.biases, expect, strict=True))
        largest = sorted(biases, key=lambda row: -abs(row[1]))[:_SHOWN]
        rows = ", ".join(f"{key} {bias:+.2f}{expected}" for key, bias, expected in largest)
        rows += ", …" if len(biases) > _SHOWN else ""
        title = "Biases" if expected_C is None else "Biases (expected by loss and class weights)"
        few = ", ".join(classes[column] for column in self.fitted.few)
        left = f" Fewer than {FEWEST} images are of {few}: the bias stays at 0." if few else ""
        return f"{self.reason} {title}: {rows}.{left}"

    def report(self, classes: Sequence[str], expected_C: Floats | None = None) -> dict[str, Any]:
        """Return plain values for JSON."""
        found: dict[str, Any] = {"kept": self.kept is not None, "why": self.reason}
        if self.fitted is None or self.gain is None:
            return found
        gain = self.gain
        return {
            **found,
            "log loss lower by": {"value": gain.value, "low": gain.low, "high": gain.high},
            "slope": self.fitted.slope,
            "biases": dict(zip(classes, self.fitted.biases, strict=True)),
            **(
                {}
                if expected_C is None
                else {"expected biases": dict(zip(classes, expected_C.tolist(), strict=True))}
            ),
            "too few images, bias 0": [classes[column] for column in self.fitted.few],
        }


def fit_class_calibration(
    log_NC: NDArray[np.floating], truth_N: Ints, groups: Sequence[str]
) -> CalibrationFit:
    """Fit slope and biases, and measure what they gain over one temperature.

    `log_NC` are logits or log-probabilities of images that no network trained on. The penalty is
    the best of a cross-fit over groups, and so is the gain. Raises ValueError for scores that are
    not finite or do not fit the truth.
    """
    crossed = _cross_fit(log_NC, truth_N, groups)
    if crossed is None:
        return CalibrationFit(None, None)
    crossed_NC, plain_NC, strength = crossed
    (fitted,) = _fit_path(log_NC, truth_N, _few(log_NC, truth_N), (strength,))
    gain = loss_gain(crossed_NC, plain_NC, truth_N, groups)
    return CalibrationFit(fitted, gain, crossed_NC, plain_NC)


def cross_fitted(
    log_NC: NDArray[np.floating], truth_N: Ints, groups: Sequence[str]
) -> Floats | None:
    """Return each image's probabilities by a calibration fitted on the folds without it, N x C.

    None where there is too little to fit biases on.
    """
    crossed = _cross_fit(log_NC, truth_N, groups)
    return None if crossed is None else crossed[0]


def _few(log_NC: NDArray[np.floating], truth_N: Ints) -> tuple[int, ...]:
    counts_C = np.bincount(truth_N, minlength=log_NC.shape[1])
    return tuple(np.flatnonzero(counts_C < FEWEST).tolist())


def _cross_fit(
    log_NC: NDArray[np.floating], truth_N: Ints, groups: Sequence[str]
) -> tuple[Floats, Floats, float] | None:
    """Return probabilities by biases and by a temperature of other folds, and the best strength.

    For each fold the strength is the best of the others; the one that is returned is the best of
    all. Which classes have a bias is decided once, by all images.
    """
    few = _few(log_NC, truth_N)
    if len(set(groups)) < FOLDS or log_NC.shape[1] - len(few) < 2:
        return None
    fold_N = fold_numbers(truth_N, groups, FOLDS)
    losses_KS = np.zeros((FOLDS, len(_STRENGTHS)))
    crossed_SNC = np.zeros((len(_STRENGTHS), *log_NC.shape))
    plain_NC = np.zeros(log_NC.shape)
    for fold in range(FOLDS):
        held_N = fold_N == fold
        learned_NC, labels_N = log_NC[~held_N], truth_N[~held_N]
        temperature = fit_temperature(learned_NC, labels_N)
        plain = ClassCalibration(slope=1 / temperature, biases=(0.0,) * log_NC.shape[1])
        plain_NC[held_N] = plain.apply(log_NC[held_N])
        rows_N = np.arange(int(held_N.sum()))
        for s, fitted in enumerate(_fit_path(learned_NC, labels_N, few, _STRENGTHS)):
            crossed_SNC[s, held_N] = fitted.apply(log_NC[held_N])
            true_N = crossed_SNC[s, held_N][rows_N, truth_N[held_N]]
            losses_KS[fold, s] = -log(true_N).sum()
    best_K = [int(np.delete(losses_KS, k, axis=0).sum(axis=0).argmin()) for k in range(FOLDS)]
    crossed_NC = crossed_SNC[np.array(best_K)[fold_N], np.arange(len(truth_N))]
    return crossed_NC, plain_NC, _STRENGTHS[int(losses_KS.sum(axis=0).argmin())]


def _fit_path(
    log_NC: NDArray[np.floating], truth_N: Ints, few: tuple[int, ...], strengths: Sequence[float]
) -> list[ClassCalibration]:
    """Return the calibrations of least penalised loss, one of each strength.

    Without biases this is `fit_temperature`, whose smoothed targets it takes.
    """
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    z_NC = np.asarray(log_softmax(log_NC, axis=1), np.float64)
    images, classes = z_NC.shape
    free_F = np.setdiff1d(np.arange(classes), few)
    rows_N, doubt = np.arange(images), 1 / (images + 2)
    rivals_NC = z_NC.copy()
    rivals_NC[rows_N, truth_N] = -np.inf
    target_NC = np.zeros_like(z_NC)
    target_NC[rows_N, truth_N] = 1 - doubt
    target_NC[rows_N, rivals_NC.argmax(axis=1)] = doubt

    def loss(flat: Floats, strength: float) -> tuple[float, Floats]:
        bias_F = flat[1:] - flat[1:].mean()
        log_pNC = flat[0] * z_NC
        log_pNC[:, free_F] += bias_F
        log_pNC = log_softmax(log_pNC, axis=1)
        over_NC = (np.exp(log_pNC) - target_NC) / images
        slope_F = over_NC[:, free_F].sum(axis=0) + 2 * strength * bias_F
        gradient = np.r_[(over_NC * z_NC).sum(), slope_F - slope_F.mean()]
        value = -(target_NC * log_pNC).sum() / images + strength * (bias_F**2).sum()
        return float(value), gradient

    flat, found = np.r_[1.0, np.zeros(len(free_F))], []
    bounds = [(COLDEST, HOTTEST), *[(None, None)] * len(free_F)]
    for strength in strengths:
        flat = minimize(
            loss,
            flat,
            (strength,),
            "L-BFGS-B",
            jac=True,
            bounds=bounds,
            options={"ftol": 1e-11, "gtol": 1e-8},
        ).x
        biases_C = np.zeros(classes)
        biases_C[free_F] = flat[1:] - flat[1:].mean()
        slope = float(np.clip(flat[0], COLDEST, HOTTEST))
        found.append(ClassCalibration(slope=slope, biases=tuple(biases_C.tolist()), few=few))
    return found
