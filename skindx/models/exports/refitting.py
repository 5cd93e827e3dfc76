"""Temperatures, sets and urgent risk fitted again for an export whose answers differ a little."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.errors import UserError
from skindx.data.manifest import Record, split_of
from skindx.models.bundle.bundle import Bundle
from skindx.models.calibration.conformal import Conformal
from skindx.models.calibration.conformal_fit import fit_on_records
from skindx.models.calibration.temperature import apply_temperature, fit_temperature
from skindx.models.calibration.urgent_risk import UrgentRisk
from skindx.models.calibration.urgent_risk_fit import fit_risk_on_records
from skindx.models.ensemble.combination import Combination, log, pool
from skindx.models.ensemble.crop_fusion import assist, box_crops
from skindx.models.ensemble.ensemble import Ensemble
from skindx.models.ensemble.predicting import decoded
from skindx.models.exports.spec import RULES, ExportCalibration
from skindx.taxonomy import Taxonomy

# M = members, N = images, C = classes

Floats = NDArray[np.float64]


def known(records: Sequence[Record], taxonomy: Taxonomy) -> list[int]:
    """Return the places of the records whose label is a class of the bundle."""
    return [n for n, record in enumerate(records) if record.label in taxonomy.keys]


def truth(records: Sequence[Record], taxonomy: Taxonomy) -> NDArray[np.int64]:
    """Return the number of each record's class."""
    number = {key: index for index, key in enumerate(taxonomy.keys)}
    return np.array([number[record.label] for record in records], dtype=np.int64)


def refit_temperatures(
    ensemble: Ensemble, eager_MNC: Floats, exported_MNC: Floats, truth_N: NDArray[np.int64]
) -> tuple[tuple[float, ...], float]:
    """Return the members' temperatures and the ensemble's for the answers of an export.

    Both sides are raw log-probabilities of the same validation images. A temperature changes by
    the factor by which its best value on these images does: members of folds were fitted on other
    images than a new fit could use, and the factor cancels what they know of these.
    """
    members = tuple(
        member.temperature * _factor(eager_NC, exported_NC, truth_N)
        for member, eager_NC, exported_NC in zip(
            ensemble.members, eager_MNC, exported_MNC, strict=True
        )
    )
    before = [member.temperature for member in ensemble.members]
    eager_NC = _pooled(eager_MNC, before, ensemble.combination)
    exported_NC = _pooled(exported_MNC, members, ensemble.combination)
    return members, ensemble.temperature * _factor(eager_NC, exported_NC, truth_N)


def _pooled(log_MNC: Floats, temperatures: Sequence[float], combination: Combination) -> Floats:
    calibrated = [apply_temperature(*pair) for pair in zip(log_MNC, temperatures, strict=True)]
    return log(pool(np.stack(calibrated), combination))


def _factor(eager_NC: Floats, exported_NC: Floats, truth_N: NDArray[np.int64]) -> float:
    return fit_temperature(exported_NC, truth_N) / fit_temperature(eager_NC, truth_N)


def check_refittable(bundle: Bundle, records: Sequence[Record], dataset: Path) -> None:
    """Raise UserError where the bundle's rules could not be fitted on this dataset."""
    held = split_of(records, "calibration")
    if any(getattr(bundle.spec, rule) for rule in RULES) and not (
        held and len(known(held, bundle.taxonomy)) == len(held)
    ):
        raise UserError(
            f"{dataset} has no calibration images of the bundle's classes, on which an int8 export "
            "fits the sets of classes and the urgent risk again; use the dataset that the bundle "
            "was trained on."
        )


def refit_rules(
    bundle: Bundle,
    exported: Ensemble,
    temperatures: tuple[tuple[float, ...], float],
    dataset: Path,
    records: Sequence[Record],
) -> ExportCalibration:
    """Fit what the bundle has of sets and urgent risk on the answers of its export.

    `exported` has the temperatures of the export already. The calibration split alone is read, as
    it was for the bundle. Raises UserError without the detector that fused answers need.
    """
    spec, held = bundle.spec, split_of(records, "calibration")
    found = ExportCalibration(members=temperatures[0], temperature=temperatures[1])
    if not any(getattr(spec, rule) for rule in RULES):
        return found
    fused_NC, whole_NC = _answers(bundle, exported, dataset, held)
    change: dict[str, Conformal | UrgentRisk | None] = {}
    for prefix, said_NC in (("", fused_NC), ("whole_", whole_NC)):
        old = getattr(spec, f"{prefix}conformal")
        if old:
            fitted = fit_on_records(said_NC, held, bundle.taxonomy, old.level)
            change[f"{prefix}conformal"] = fitted
        if getattr(spec, f"{prefix}urgent_risk"):
            risk = fit_risk_on_records(said_NC, held, bundle.taxonomy)
            change[f"{prefix}urgent_risk"] = risk
    return found.model_copy(update=change)


def _answers(
    bundle: Bundle, ensemble: Ensemble, dataset: Path, held: Sequence[Record]
) -> tuple[Floats, Floats]:
    """Return the answers as served, with crops where the bundle looks at them, and without."""
    fusion = bundle.spec.fusion
    detector = bundle.detector() if fusion and fusion.weight else None
    fused, plain = [], []
    for images in decoded(dataset, held):
        whole = ensemble.probabilities(images)
        plain.append(whole[0])
        if detector and fusion:
            crops = box_crops(
                images, detector.detect(images), detector.spec.confidence, fusion.margin
            )
            whole = assist(ensemble, crops, whole, fusion.weight)
        fused.append(whole[0])
    return np.concatenate(fused), np.concatenate(plain)
