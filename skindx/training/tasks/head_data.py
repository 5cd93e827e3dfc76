"""Heads on a frozen trunk: their rows of its features, networks and predictions, solved ones too.

Many heads of one shape are one batched product. Exact logistic regression, nearest neighbours and
prototypes need no steps.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from skindx.metrics import balanced_accuracy
from skindx.models.classifier.classifier import fitted_network
from skindx.models.classifier.head_kinds import Head, KnnHead, PrototypeHead
from skindx.models.classifier.heads import Mlp, make_head
from skindx.training.checkpoint.finished import FinishedMember
from skindx.training.config.recipe import Recipe
from skindx.training.config.run import MemberSettings
from skindx.training.state import DivergedError, Row
from skindx.training.tasks.losses import class_weights

# P = images of train and val, N = those of one head, D = dimensions, C = classes

Rows = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class HeadData:
    """One head: its settings, and which rows of the features are its own."""

    member: MemberSettings
    features: Sequence[Rows]
    """P x D of each view, shared by all heads of the trunk; of a trunk's files memory-mapped."""
    labels_P: NDArray[np.int64]
    train_N: NDArray[np.int64]
    """Rows that it learns from."""
    val_N: NDArray[np.int64]
    """Rows that it is validated on."""
    classes: int

    @property
    def dimensions(self) -> int:
        return int(self.features[0].shape[1])

    def scale(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return mean and standard deviation of the training features, over all views."""
        parts = [rows_ND.astype(np.float64) for rows_ND in self._training_rows()]
        count = sum(len(part) for part in parts)
        mean_D = sum(part.sum(axis=0) for part in parts) / count
        variance_D = sum(((part - mean_D) ** 2).sum(axis=0) for part in parts) / count
        std_D = np.sqrt(variance_D)
        # A feature that never changes says nothing; dividing by its noise would make it loud.
        std_D = np.where(std_D < 1e-4 * max(float(std_D.max()), 1e-12), 1.0, std_D)
        return np.asarray(mean_D, np.float32), np.asarray(std_D, np.float32)

    def training_features(self) -> NDArray[np.float32]:
        """Return the training features of all views one after the other, V N x D."""
        return np.concatenate(list(self._training_rows())).astype(np.float32)

    def training_labels(self) -> NDArray[np.int64]:
        return np.tile(self.labels_P[self.train_N], len(self.features))

    def _training_rows(self) -> list[Rows]:
        return [view_PD[self.train_N] for view_PD in self.features]


# Many heads of one shape as one batched product.
#
# M = heads, B = batch, D = dimensions, C = classes, W = hidden units


class HeadStack(nn.Module):
    """Features M x B x D in, logits M x B x C out; each head sees its own features standardised."""

    mean_M1D: Tensor
    std_M1D: Tensor

    def __init__(
        self,
        head: Head,
        scales: Sequence[tuple[Tensor, Tensor]],
        classes: int,
        seeds: Sequence[int],
    ) -> None:
        super().__init__()
        dimensions = len(scales[0][0])
        self.heads = nn.ModuleList(_fresh(head, dimensions, classes, seed) for seed in seeds)
        self.register_buffer("mean_M1D", torch.stack([mean for mean, _ in scales])[:, None])
        self.register_buffer("std_M1D", torch.stack([std for _, std in scales])[:, None])

    def forward(self, features_MBD: Tensor) -> Tensor:
        """Return the logits of each head for its own features."""
        x = (features_MBD - self.mean_M1D) / self.std_M1D
        if isinstance(self.heads[0], Mlp):
            x = functional.gelu(_product(x, [head.get_submodule("fc1") for head in self.heads]))
            return _product(x, [head.get_submodule("fc2") for head in self.heads])
        return _product(x, list(self.heads))

    def state_of(self, number: int) -> dict[str, Tensor]:
        """Return one head's tensors for features as they are: the standardising is folded in."""
        head = self.heads[number]
        state = {name: value.detach().clone() for name, value in head.state_dict().items()}
        first = "fc1." if isinstance(head, Mlp) else ""
        mean_D, std_D = self.mean_M1D[number, 0], self.std_M1D[number, 0]
        weight = state[f"{first}weight"].double() / std_D.double()
        state[f"{first}bias"] = (state[f"{first}bias"] - weight @ mean_D.double()).float()
        state[f"{first}weight"] = weight.float()
        return state


def _fresh(head: Head, dimensions: int, classes: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    made = make_head(head, dimensions, classes)
    last = made.fc2 if isinstance(made, Mlp) else made
    assert isinstance(last, nn.Linear)
    nn.init.normal_(last.weight, std=0.01)  # starts from a nearly even guess
    nn.init.zeros_(last.bias)
    return made


def _product(x_MBD: Tensor, layers: Sequence[nn.Module]) -> Tensor:
    if len(layers) == 1:
        return functional.linear(x_MBD[0], layers[0].weight, layers[0].bias)[None]  # type: ignore[arg-type]
    weight_MDE = torch.stack([layer.weight for layer in layers]).transpose(1, 2)  # type: ignore[misc]
    bias_M1E = torch.stack([layer.bias for layer in layers])[:, None]  # type: ignore[misc]
    return torch.baddbmm(bias_M1E, x_MBD, weight_MDE)


# Predictions of heads for their validation images, from cached features.
#
# N = validation images, C = classes, D = dimensions


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
    return (torch.stack(seen).logsumexp(0) - np.log(len(seen)) if seen[1:] else seen[0]).numpy()


def accuracy(finished: FinishedMember) -> tuple[float, float]:
    """Return top-1 and balanced accuracy on the validation images. Raises DivergedError."""
    probabilities_NC = np.exp(finished.validation_NC)
    if not np.isfinite(probabilities_NC).all():
        raise DivergedError("answers")
    right_N = finished.validation_NC.argmax(axis=1) == finished.truth_N
    score = balanced_accuracy(probabilities_NC, finished.truth_N)
    return round(float(right_N.mean()), 4), round(float(score), 4)


# Heads that need no steps: exact logistic regression, nearest neighbours, prototypes.
#
# N = training features, D = dimensions, C = classes

Floats = NDArray[np.float64]

_STRENGTHS = tuple(10.0**power for power in range(-5, 3))
"""Values of scikit-learn's C that are tried, from the strongest regularisation on."""

_MOST_ITERATIONS = 1000


@dataclass(frozen=True)
class Solved:
    """A head, and how it was chosen."""

    finished: FinishedMember
    history: list[Row]


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
    figures = {"epoch": 1, "val_top1": top1, "val_balanced": balanced}
    best = min(rows, key=lambda row: row["val_loss"]) if rows else {}
    return Solved(
        finished, [{**figures, **{key: best[key] for key in ("C", "val_loss") if key in best}}]
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
    weights_N = weights_C.double().numpy()[labels_N]
    weights_N *= len(weights_N) / weights_N.sum()
    truth_N = head.labels_P[head.val_N]
    tried: list[tuple[float, float, dict[str, Tensor]]] = []
    for strength, (weight_CD, bias_C) in _fit_path(x_ND, labels_N, weights_N, head.classes):
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


def _fit_path(
    x_ND: NDArray[np.float64],
    labels_N: NDArray[np.int64],
    weights_N: NDArray[np.float64],
    classes: int,
) -> Iterator[tuple[float, tuple[Floats, Floats]]]:
    """Yield (C, (weights C x D, biases C)) from the strongest regularisation to the weakest.

    Each fit starts from the one before. Every class must be among the labels.
    """
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=_MOST_ITERATIONS, tol=1e-6, warm_start=True)
    for strength in _STRENGTHS:
        model.C = strength
        yield strength, _fitted(model, x_ND, labels_N, weights_N, classes)


def _fitted(
    model: Any, x_ND: Floats, labels_N: NDArray[np.int64], weights_N: Floats, classes: int
) -> tuple[Floats, Floats]:
    from threadpoolctl import threadpool_limits

    # Products this small gain little from threads, which on shared cores wait for each other by
    # turning: 1,065 x 1,280 features took 22 s of two busy cores, and take 1.3 s of one.
    with warnings.catch_warnings(), threadpool_limits(limits=1):
        # Hardly regularised, separable classes have no finite optimum; validation does not take it.
        warnings.simplefilter("ignore")
        model.fit(x_ND, labels_N, sample_weight=weights_N)
    weight, bias = model.coef_, model.intercept_
    if classes == 2:  # scikit-learn keeps the second class's half alone
        return np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    return weight.copy(), bias.copy()
