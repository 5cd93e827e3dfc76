"""The bundle's ensemble on the crops of lesions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.models.ood.extraction import features_of
from skindx.models.urgent_risk import urgent_risks
from skindx.scan.crops import colour_difference, lesion_crop
from skindx.scan.lesion import Lesion
from skindx.scan.photo.pixels import PixelStore

if TYPE_CHECKING:
    from skindx.diagnosis.predictor import Predictor


def diagnose_lesions(
    predictor: "Predictor", store: PixelStore, boxes: Sequence[Box], margin: float
) -> list[Lesion]:
    """Return what the ensemble says of each lesion; at least one, all in one batch.

    The detector has looked already, so thresholds are those that were fitted for whole images
    alone. Raises UserError for a bundle that gives no probabilities.
    """
    alone = replace(predictor, detector=None)
    needed = max(member.preprocess.margin_size for member in predictor.ensemble.members)
    cut = [lesion_crop(store, box, margin, needed) for box in boxes]
    crops = [crop_SS3 for crop_SS3, _ in cut]
    output = predictor.ensemble.predict_with_features(crops)
    probabilities_NC = output.probabilities_NC
    if not np.isfinite(probabilities_NC).all():
        raise UserError(
            f"bundle {predictor.bundle.path} gives no probabilities for a lesion; its weights are "
            "damaged, train and pack it again."
        )
    ood = predictor.ood
    p_values_N = (
        ood.p_values(features_of(predictor.ensemble, crops, output, ood.needs)) if ood else None
    )
    sets_NC = alone.conformal.sets(probabilities_NC) if alone.conformal else None
    rule = alone.urgent_risk
    threshold = rule.thresholds(rule.level(alone.miss_rate), [None])[0] if rule else None
    urgent_columns = _urgent_columns(predictor)
    risks_N = urgent_risks(probabilities_NC, urgent_columns)
    keys = predictor.taxonomy.keys
    return [
        Lesion(
            box=box,
            probabilities_C=probabilities_NC[n],
            urgent_risk=float(risks_N[n]) if urgent_columns else None,
            urgent=bool(risks_N[n] >= threshold) if threshold is not None else None,
            possible=tuple(keys[c] for c in np.flatnonzero(sets_NC[n]))
            if sets_NC is not None
            else (),
            ood_p_value=float(p_values_N[n]) if p_values_N is not None else None,
            embedding_D=output.embeddings_ND[n],
            colour_lab=colour_difference(*cut[n]),
        )
        for n, box in enumerate(boxes)
    ]


def _urgent_columns(predictor: "Predictor") -> list[int]:
    """Return which classes are urgent: by the fitted rule where there is one."""
    rule = predictor.urgent_risk
    if rule:
        return list(rule.urgent_columns)
    classes = predictor.taxonomy.classes
    return [n for n, skin_class in enumerate(classes) if skin_class.urgency == "urgent"]
