"""How many of so many planted wrong labels stand among as many first doubts, by ranking."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.data.embedding_files import label_table, read_embeddings
from skindx.data.manifest import read_manifest
from skindx.review.label_doubts import GroupedKernel, Ints, plant, weigh
from skindx_bench.harness.result import MEANS, Figure, Result

Floats = NDArray[np.float64]
FOLDS = 5


@dataclass(frozen=True)
class Given:
    """Labels with planted errors, and what is known of the images."""

    vectors_ND: NDArray[np.float32]
    labels_N: Ints
    groups_N: NDArray[np.str_]
    probabilities_NC: Floats
    """Of the linear classifier, out of fold."""
    kernel_NC: Floats
    """Of the kernel regression, without the image's group."""
    wrong_N: Floats
    """Of the combination."""


def found_shares(
    vectors_ND: NDArray[np.float32],
    labels_N: Ints,
    groups_N: NDArray[np.str_],
    *,
    share: float,
    even: float,
    seeds: int,
) -> dict[str, list[float]]:
    """Return for each ranking which share of n planted errors is among its first n, by seed."""
    truth_NC, _ = out_of_fold(vectors_ND, labels_N, groups_N)
    kernel = GroupedKernel(vectors_ND, groups_N)
    found: dict[str, list[float]] = {name: [] for name in RANKINGS}
    for seed in range(seeds):
        # Other streams than those of the errors that the combination plants for itself.
        random = np.random.default_rng((seed, 1_000_003))
        swapped_N, wrong_P = plant(labels_N, truth_NC, share, even, random)
        probabilities_NC, _ = out_of_fold(vectors_ND, swapped_N, groups_N, seed=seed)
        wrong_N, own = weigh(kernel, vectors_ND, swapped_N, groups_N, seed)
        given = Given(
            vectors_ND, swapped_N, groups_N, probabilities_NC, own.probabilities_NC, wrong_N
        )
        for name, ranking in RANKINGS.items():
            first = ranking(given)[: len(wrong_P)]
            found[name].append(float(np.isin(first, wrong_P).mean()))
    return found


def _combined(given: Given) -> Ints:
    return np.argsort(-given.wrong_N, kind="stable")


def _cleanlab(given: Given) -> Ints:
    return doubt_order(given.labels_N, given.probabilities_NC)


def _cleanlab_kernel(given: Given) -> Ints:
    """Return cleanlab's ranking of the predictions that the combination uses."""
    return doubt_order(given.labels_N, given.kernel_NC)


def _cleanlab_margin(given: Given) -> Ints:
    from cleanlab.rank import get_label_quality_scores

    quality_N = get_label_quality_scores(
        given.labels_N, given.probabilities_NC, method="normalized_margin"
    )
    return np.argsort(quality_N, kind="stable")


def _selfclean(given: Given) -> Ints:
    """SelfClean's indicator (Gröger et al. 2024, arXiv 2305.17048, eq. 4).

    The squared distance to the nearest image of the same label over itself and that to the nearest
    of another one. Images of the same group are left out: they would give the answer away.
    """
    return np.argsort(-indicator(given.vectors_ND, given.labels_N, given.groups_N), kind="stable")


def indicator(
    vectors_ND: NDArray[np.float32], labels_N: Ints, groups_N: NDArray[np.str_]
) -> Floats:
    """Return SelfClean's score, near 1 for a label that its neighbours do not have."""
    _, group_N = np.unique(groups_N, return_inverse=True)
    scores = []
    for row, vector_D in enumerate(vectors_ND):
        distance_N = 1 - (vectors_ND @ vector_D).astype(np.float64)
        other_N = group_N != group_N[row]
        same_N = labels_N == labels_N[row]
        same = distance_N[other_N & same_N].min(initial=2.0)
        other = distance_N[other_N & ~same_N].min(initial=2.0)
        scores.append(same**2 / max(same**2 + other**2, 1e-12))
    return np.array(scores)


def doubt_order(labels_N: Ints, probabilities_NC: Floats) -> Ints:
    """Return positions, the most doubtful first: by the probability of the given label.

    Of cleanlab's rankings this one found most planted errors on the images that we tried.
    """
    from cleanlab.rank import get_label_quality_scores

    quality_N = get_label_quality_scores(labels_N, probabilities_NC, method="self_confidence")
    order_N: Ints = np.argsort(quality_N, kind="stable")
    return order_N


def out_of_fold(
    vectors_ND: NDArray[np.float32],
    labels_N: Ints,
    groups_N: NDArray[np.str_],
    *,
    seed: int = 0,
) -> tuple[Floats, int]:
    """Return probabilities_NC by a logistic regression that saw no image of the same group.

    Also returns the number of folds: five, or as many as the class of fewest groups has. Raises
    UserError for a class in a single group: nothing can be learned of it apart from itself.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    classes = int(labels_N.max()) + 1
    folds = min(FOLDS, *(len(set(groups_N[labels_N == c])) for c in range(classes)))
    if folds < 2:
        raise UserError(
            "all images of one class are in one group, so no fold holds out a part of it; add "
            "images of this class from other patients, or remove the class."
        )
    probabilities_NC = np.zeros((len(labels_N), classes))
    cut = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    for train, held in cut.split(vectors_ND, labels_N, groups_N):
        assert not set(groups_N[train]) & set(groups_N[held])
        model = classifier().fit(vectors_ND[train], labels_N[train])
        probabilities_NC[np.ix_(held, model.classes_)] = model.predict_proba(vectors_ND[held])
    return probabilities_NC, folds


def classifier() -> "LogisticRegression":  # type: ignore[name-defined] # noqa: F821
    """Return the classifier of embeddings: vectors of length 1 ask for a weak penalty."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=10.0, max_iter=500)


RANKINGS: dict[str, Callable[[Given], Ints]] = {
    "combined": _combined,
    "cleanlab": _cleanlab,
    "cleanlab kernel": _cleanlab_kernel,
    "cleanlab margin": _cleanlab_margin,
    "selfclean": _selfclean,
}


SMALLEST = ("images=120", "seeds=2")

KINDS = {"": 1.0, "_confusable": 0.0}
"""Suffix of a figure's key -> which part of the errors goes to any class alike."""


class Config(Settings):
    """Without a dataset: made-up vectors of four classes, which only show that the bench runs."""

    dataset: Path | None = None
    embeddings: Path | None = None
    """A table of `skindx dedup embed`; none: the dataset's, of all layers if it has it."""
    share: float = Field(0.05, gt=0, le=0.3)
    seeds: int = Field(5, ge=2)
    images: int = Field(400, ge=40)
    """How many are made up."""


def run(settings: Config) -> Result:
    """Plant errors under several seeds and let each ranking find them."""
    vectors_ND, labels_N, groups_N, note = _images(settings)
    figures: dict[str, Figure] = {}
    baselines: dict[str, Figure] = {}
    for suffix, even in KINDS.items():
        by_name = found_shares(
            vectors_ND, labels_N, groups_N, share=settings.share, even=even, seeds=settings.seeds
        )
        assert by_name.keys() == RANKINGS.keys()
        for name, shares in by_name.items():
            key = f"label_precision_at_n{suffix}"
            if name == "combined":
                figures[key] = _mean(shares)
            else:
                baselines[f"{name}, {key}"] = _mean(shares)
    return Result("labels", {**figures, **baselines}, notes=(note,), headings=MEANS)


def _mean(shares: list[float]) -> Figure:
    """Return the mean over seeds with its 95 % interval by Student's t."""
    from scipy.stats import t

    mean, error = float(np.mean(shares)), float(np.std(shares, ddof=1) / len(shares) ** 0.5)
    half = float(t.ppf(0.975, len(shares) - 1)) * error
    return Figure(mean, "of the planted", len(shares), (mean - half, mean + half))


def _images(
    settings: Config,
) -> tuple[NDArray[np.float32], NDArray[np.intp], NDArray[np.str_], str]:
    if settings.dataset is None:
        random = np.random.default_rng(0)
        labels_N = np.arange(settings.images // 2).repeat(2) % 4
        centres = random.normal(0, 1, (4, 16))
        made = centres[labels_N] + random.normal(0, 1.0, (len(labels_N), 16))
        made /= np.linalg.norm(made, axis=1, keepdims=True)
        groups_N = np.array([f"g{n // 2}" for n in range(len(labels_N))])
        note = f"{len(labels_N)} made-up vectors of 4 classes in pairs."
        return made.astype(np.float32), labels_N, groups_N, note
    records = read_manifest(settings.dataset)
    table = read_embeddings(settings.embeddings or label_table(settings.dataset))
    known_N, vectors_ND = table.select([record.sha256 for record in records])
    records = [records[at] for at in known_N]
    classes, labels_N = np.unique([record.label for record in records], return_inverse=True)
    groups_N = np.array([record.group for record in records])
    note = (
        f"{len(records)} images of {len(classes)} classes of {settings.dataset.name}, embedded by "
        f"{table.model}; {settings.share:.0%} of the labels swapped. The labels' own errors count "
        "as false alarms."
    )
    return vectors_ND, labels_N, groups_N, note
