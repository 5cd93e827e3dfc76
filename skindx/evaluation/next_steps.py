"""The next step that the page would show for each image of an evaluation."""

from collections.abc import Sequence

from skindx.data.manifest import Record
from skindx.diagnosis.conclusion import ConclusionRules, conclude
from skindx.models.ensemble import Prediction
from skindx.taxonomy import Urgency


def served_steps(
    predictor: ConclusionRules, records: Sequence[Record], predictions: Sequence[Prediction]
) -> tuple[Urgency, ...]:
    """Return the urgency of each image's next step, each image a case of its own.

    The skin type is stated where the manifest knows it. Whether a photo is refused, or is too
    unfamiliar to name a condition, is not asked here.
    """
    return tuple(
        conclude(
            predictor,
            prediction.probabilities_C[None],
            prediction.member_probabilities_MC[:, None],
            skin_type=record.skin_type,
        ).next_step.urgency
        for record, prediction in zip(records, predictions, strict=True)
    )
