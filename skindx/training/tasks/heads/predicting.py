"""Predictions of heads for their validation images, from cached features.

N = validation images, C = classes, D = dimensions
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skindx.metrics import balanced_accuracy
from skindx.models.classifier.classifier import fitted_network
from skindx.models.classifier.heads import make_head
from skindx.training.finished.member import FinishedMember
from skindx.training.task import DivergedError
from skindx.training.tasks.heads.data import HeadData
from skindx.training.tasks.heads.network import HeadStack


def finished_head(network: HeadStack, number: int, head: HeadData, place: str) -> FinishedMember:
    """Return one head's tensors and its predictions of its validation images."""
    state = network.state_of(number)
    log_NC = predict_rows(head, state)
    named = {f"{place}.{name}": value.cpu() for name, value in state.items()}
    return FinishedMember(named, log_NC, head.labels_P[head.val_N])


def predict_rows(head: HeadData, state: dict[str, Tensor]) -> NDArray[np.float64]:
    """Return log-probabilities N x C of a head's validation images, the mean over its views."""
    settings = fitted_network(head.member.network(), {f".{k}": v for k, v in state.items()})
    made = make_head(settings.head, head.dimensions, head.classes)
    made.load_state_dict(
        {
            name: value.cpu().float() if value.is_floating_point() else value.cpu()
            for name, value in state.items()
        }
    )
    seen = []
    with torch.inference_mode():
        for view_PD in head.features:
            features_ND = torch.from_numpy(view_PD[head.val_N].astype(np.float32))
            seen.append(torch.log_softmax(made(features_ND).double(), dim=1))
    log_NC: NDArray[np.float64] = (
        torch.stack(seen).logsumexp(0) - np.log(len(seen)) if seen[1:] else seen[0]
    ).numpy()
    return log_NC


def accuracy(finished: FinishedMember) -> tuple[float, float]:
    """Return top-1 and balanced accuracy on the validation images. Raises DivergedError."""
    probabilities_NC = np.exp(finished.validation_NC)
    if not np.isfinite(probabilities_NC).all():
        raise DivergedError("answers")
    right_N = finished.validation_NC.argmax(axis=1) == finished.truth_N
    score = balanced_accuracy(probabilities_NC, finished.truth_N)
    return round(float(right_N.mean()), 4), round(float(score), 4)
