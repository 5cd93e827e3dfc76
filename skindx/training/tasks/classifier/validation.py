"""Predictions of the validation images, each rank predicting its share."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from skindx.models.classifier.classifier import Classifier
from skindx.models.ensemble.ensemble import Member
from skindx.training.config.run import MemberSettings
from skindx.training.feeding.images import ValidationSet
from skindx.training.finished.member import FinishedMember
from skindx.training.parallel.mesh import Mesh
from skindx.training.recipes.lora import plain_state
from skindx.training.task import ValidationStoppedError

# N = images, C = classes


def validate(
    classifier: Classifier,
    member: MemberSettings,
    own: ValidationSet,
    mesh: Mesh,
    asked: Callable[[], bool] = lambda: False,
) -> FinishedMember:
    """Return the classifier's weights and its predictions of all validation images.

    `classifier` is in evaluation mode, `own` this rank's share; every rank calls this. Raises
    ValidationStoppedError when any rank is `asked` to stop meanwhile.
    """
    predictor = Member(member.name, classifier, member.preprocess)
    try:
        log_NC = (
            predictor.log_probabilities_of_squares(_until(asked, own.squares()))
            if len(own)
            else None
        )
        stopped = False
    except ValidationStoppedError:
        log_NC, stopped = None, True
    if any(mesh.gather(stopped)):
        raise ValidationStoppedError
    validation_NC, truth_N = _together(mesh.gather((log_NC, own.labels_N)))
    whole = plain_state(classifier.net)
    state = {name: tensor.detach().clone() for name, tensor in whole.items()}
    return FinishedMember(state, validation_NC, truth_N)


def _until(
    asked: Callable[[], bool], batches: Iterable[NDArray[np.uint8]]
) -> Iterator[NDArray[np.uint8]]:
    for batch in batches:
        if asked():
            raise ValidationStoppedError
        yield batch


def _together(
    parts: list[tuple[NDArray[np.float64] | None, NDArray[np.int64]]],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Put every rank's rows back in their places: rank r took rows r, r + P, … of the manifest."""
    count, world = sum(len(labels) for _, labels in parts), len(parts)
    classes = next(log.shape[1] for log, _ in parts if log is not None)
    validation_NC = np.empty((count, classes))
    truth_N = np.empty(count, dtype=np.int64)
    for rank, (log, labels) in enumerate(parts):
        if log is not None:
            validation_NC[rank::world] = log
            truth_N[rank::world] = labels
    return validation_NC, truth_N
