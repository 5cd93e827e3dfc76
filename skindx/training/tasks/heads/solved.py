"""Heads that need no steps: exact logistic regression, nearest neighbours, prototypes.

N = training features, D = dimensions, C = classes
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from skindx.models.classifier.heads import KnnHead, LinearHead, PrototypeHead
from skindx.training.config.recipe import Recipe
from skindx.training.finished.member import FinishedMember
from skindx.training.recipes.losses import class_weights
from skindx.training.task import Row
from skindx.training.tasks.heads.data import HeadData
from skindx.training.tasks.heads.predicting import accuracy, predict_rows

Floats = NDArray[np.float64]

STRENGTHS = tuple(10.0**power for power in range(-5, 3))
"""Values of scikit-learn's C that are tried, from the strongest regularisation on."""

_MOST_ITERATIONS = 1000


@dataclass(frozen=True)
class Solved:
    """A head, and how it was chosen."""

    finished: FinishedMember
    history: list[Row]


def is_solved(head: LinearHead | KnnHead | PrototypeHead | object) -> bool:
    """True for a head that is found without steps."""
    if isinstance(head, LinearHead):
        return head.solver == "exact"
    return isinstance(head, KnnHead | PrototypeHead)


def solve(head: HeadData, recipe: Recipe, place: str) -> Solved:
    """Return the head that the training features decide; a C is chosen on its validation images."""
    weights_C = class_weights(head.labels_P[head.train_N], head.classes, recipe)
    rows: list[Row] = []
    kind = head.member.head
    if isinstance(kind, KnnHead):
        state = _bank(head, weights_C)
    elif isinstance(kind, PrototypeHead):
        state = _prototypes(head)
    else:
        state, rows = _logistic(head, weights_C)
    log_NC = predict_rows(head, state)
    truth_N = head.labels_P[head.val_N]
    finished = FinishedMember(
        {f"{place}.{name}": value for name, value in state.items()}, log_NC, truth_N
    )
    top1, balanced = accuracy(finished)
    own = {"epoch": 1, "val_top1": top1, "val_balanced": balanced}
    best = min(rows, key=lambda row: row["val_loss"]) if rows else {}
    return Solved(
        finished, [{**own, **{key: best[key] for key in ("C", "val_loss") if key in best}}]
    )


def _bank(head: HeadData, weights_C: Tensor) -> dict[str, Tensor]:
    features_ND = torch.from_numpy(head.training_features())
    return {
        "bank_ND": functional.normalize(features_ND, dim=1).half(),
        "labels_N": torch.from_numpy(head.training_labels()),
        "weights_C": weights_C,
    }


def _prototypes(head: HeadData) -> dict[str, Tensor]:
    features_ND = torch.from_numpy(head.training_features())
    mean_D = features_ND.double().mean(dim=0).float()
    unit_ND = functional.normalize(features_ND - mean_D, dim=1)
    labels_N = torch.from_numpy(head.training_labels())
    mean_CD = torch.zeros(head.classes, unit_ND.shape[1]).index_add(0, labels_N, unit_ND)
    return {"prototypes_CD": functional.normalize(mean_CD, dim=1), "mean_D": mean_D}


def _logistic(head: HeadData, weights_C: Tensor) -> tuple[dict[str, Tensor], list[Row]]:
    """Return the weights of least validation loss over the strengths, and all losses."""
    mean_D, std_D = (part.astype(np.float64) for part in head.scale())
    x_ND = (head.training_features() - mean_D) / std_D
    labels_N = head.training_labels()
    own_N = weights_C.double().numpy()[labels_N]
    own_N *= len(own_N) / own_N.sum()
    truth_N = head.labels_P[head.val_N]
    tried: list[tuple[float, float, dict[str, Tensor]]] = []
    for strength, (weight_CD, bias_C) in fit_path(x_ND, labels_N, own_N, head.classes):
        folded_CD = weight_CD / std_D
        state = {
            "weight": torch.from_numpy(folded_CD).float(),
            "bias": torch.from_numpy(bias_C - folded_CD @ mean_D).float(),
        }
        log_NC = predict_rows(head, state)
        loss = -float(log_NC[np.arange(len(truth_N)), truth_N].mean())
        tried.append((loss, strength, state))
        if len(tried) > 2 and tried[-1][0] > tried[-2][0] > tried[-3][0]:
            break  # less regularisation only makes it worse
    _, _, best = min(tried, key=lambda row: row[0])
    return best, [{"C": strength, "val_loss": round(loss, 5)} for loss, strength, _ in tried]


def fit_path(
    x_ND: NDArray[np.float64],
    labels_N: NDArray[np.int64],
    weights_N: NDArray[np.float64],
    classes: int,
) -> Iterator[tuple[float, tuple[Floats, Floats]]]:
    """Yield (C, (weights C x D, biases C)) from the strongest regularisation to the weakest.

    Each fit starts from the one before. Every class must be among the labels.
    """
    model = _model(STRENGTHS[0])
    for strength in STRENGTHS:
        model.C = strength
        yield strength, _fitted(model, x_ND, labels_N, weights_N, classes)


def fit_logistic(
    x_ND: Floats, labels_N: NDArray[np.int64], weights_N: Floats, classes: int, strength: float
) -> tuple[Floats, Floats]:
    """Return weights C x D and biases C of one fit; every class must be among the labels."""
    return _fitted(_model(strength), x_ND, labels_N, weights_N, classes)


def _model(strength: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=strength, max_iter=_MOST_ITERATIONS, tol=1e-6, warm_start=True)


def _fitted(
    model: Any, x_ND: Floats, labels_N: NDArray[np.int64], weights_N: Floats, classes: int
) -> tuple[Floats, Floats]:
    with warnings.catch_warnings():
        # Hardly regularised, separable classes have no finite optimum; validation does not take it.
        warnings.simplefilter("ignore")
        model.fit(x_ND, labels_N, sample_weight=weights_N)
    weight, bias = model.coef_, model.intercept_
    if classes == 2:  # scikit-learn keeps the second class's half alone
        return np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    return weight.copy(), bias.copy()
