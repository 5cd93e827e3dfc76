"""What an ensemble gains over one of its members, or over another network, figure by figure.

The better member is a random variable: it is chosen by the very figure that is compared, on
validation images, and the share of resampled validation groups that choose it stands beside. Where
fewer than 90 % do, or there are no validation images, the gain over each member stands instead.
Choosing it on the test images, or by another figure, makes the gain an artefact of the choice.

N = images, C = classes, D = bootstrap draws, K = networks
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skindx.evaluation.answers import Answers, Floats, Ints, Strings
from skindx.evaluation.figures import FIGURES, LEVEL, SEED
from skindx.metrics import Interval, Measure, paired_interval
from skindx.metrics.bootstrap import group_weights

GAINED = ("top1", "balanced_accuracy", "balanced_rule_accuracy", "auroc", "log_loss")
"""The figures in which gains are stated, by their keys in FIGURES."""
SURE = 0.9
"""The least share of resampled validation groups that have to choose the better member."""

Networks = Mapping[str, NDArray[np.float64]]
"""The probabilities_NC of each network, by its name; of the same images."""


@dataclass(frozen=True, slots=True)
class MemberChoice:
    """Which network is the best by one figure on validation images, and how sure that is."""

    best: str
    shares: dict[str, float]
    """The share of group bootstraps in which each is the best; networks that tie share a draw."""

    @property
    def sure(self) -> bool:
        """Whether the best one is chosen in at least 90 % of the bootstraps."""
        return self.shares[self.best] >= SURE


@dataclass(frozen=True, slots=True)
class MemberGain:
    """Ensemble minus one network, paired on the same resampled groups; in the figure's unit.

    Of a figure that is better when low, such as log loss, a gain is below 0.
    """

    member: str
    gain: Interval


@dataclass(frozen=True, slots=True)
class FigureGain:
    """The gain in one figure: over the better member alone where it is sure, else over each."""

    key: str
    choice: MemberChoice | None
    """Which member is the best on validation images, and how sure; None without such images."""
    gains: tuple[MemberGain, ...]
    """One gain over the best member where the choice is sure; else one for each member."""

    @property
    def over_better(self) -> MemberGain | None:
        """The gain over the better member; None where chance decides which one that is."""
        return self.gains[0] if self.choice and self.choice.sure else None


def member_gains(
    answers: Answers,
    validation: Answers | None = None,
    *,
    keys: Sequence[str] = GAINED,
    draws: int = 1000,
) -> tuple[FigureGain, ...]:
    """Return what the ensemble gains over its members; empty for a single member.

    `validation` are the answers of the same members to validation images. Raises ValueError for
    other members. A figure that cannot be computed (the balanced rule without a mix) is left out.
    """
    if len(answers.members) < 2:
        return ()
    if validation is not None and validation.members != answers.members:
        raise ValueError(
            f"the evaluation has the members {answers.members}, but the validation has "
            f"{validation.members}"
        )
    made = (
        figure_gain(
            key,
            answers.ensemble_NC,
            networks_of(answers),
            answers.truth_N,
            answers.groups_N,
            mix_C=answers.mix_C,
            choice=choose_network(
                key,
                networks_of(validation),
                validation.truth_N,
                validation.groups_N,
                mix_C=validation.mix_C,
                draws=draws,
            )
            if validation is not None
            else None,
            draws=draws,
        )
        for key in keys
    )
    return tuple(gain for gain in made if gain is not None)


def networks_of(answers: Answers) -> Networks:
    """Return the probabilities of each member, by its name."""
    return {name: answers.members_NMC[:, m] for m, name in enumerate(answers.members)}


def figure_gain(
    key: str,
    ensemble_NC: Floats,
    networks: Networks,
    truth_N: Ints,
    groups_N: Strings,
    *,
    mix_C: Floats | None = None,
    choice: MemberChoice | None = None,
    draws: int = 1000,
) -> FigureGain | None:
    """Return the gain in the figure `key` over the chosen network, or over each.

    None for a figure of the balanced rule without a mix.
    """
    ours = FIGURES[key].measure(ensemble_NC, truth_N, mix_C)
    if ours is None:
        return None

    def over(name: str) -> MemberGain:
        theirs = FIGURES[key].measure(networks[name], truth_N, mix_C)
        if theirs is None:
            raise ValueError(f"{key} is not defined for {name}")
        return MemberGain(
            name, paired_interval(ours, theirs, groups_N, draws=draws, level=LEVEL, seed=SEED)
        )

    names = [choice.best] if choice and choice.sure else list(networks)
    return FigureGain(key, choice, tuple(map(over, names)))


def choose_network(
    key: str,
    networks: Networks,
    truth_N: Ints,
    groups_N: Strings,
    *,
    mix_C: Floats | None = None,
    draws: int = 1000,
) -> MemberChoice | None:
    """Choose the best network by the figure `key`, on images that no test is made with.

    None for a figure that is not defined of these images, and for no network.
    """
    sign = 1 if FIGURES[key].better == "high" else -1
    made = [FIGURES[key].measure(p_NC, truth_N, mix_C) for p_NC in networks.values()]
    measures: list[Measure] = [measure for measure in made if measure is not None]
    value_K = sign * np.array([measure.value for measure in measures])
    if not len(value_K) or np.isnan(value_K).any():
        return None
    _, index_N = np.unique(groups_N, return_inverse=True)
    groups = int(index_N.max()) + 1
    redraws = [measure.redraw(index_N, groups) for measure in measures]
    won_K, counted = np.zeros(len(value_K)), 0
    for weights_DG in group_weights(groups, draws, SEED, len(index_N)):
        with np.errstate(invalid="ignore", divide="ignore"):  # a draw may lack a class: NaN
            value_DK = sign * np.stack([redraw(weights_DG) for redraw in redraws], axis=1)
        value_DK = value_DK[~np.isnan(value_DK).any(axis=1)]
        best_DK = value_DK >= value_DK.max(axis=1, keepdims=True) - 1e-12
        won_K += (best_DK / best_DK.sum(axis=1, keepdims=True)).sum(axis=0)
        counted += len(value_DK)
    if not counted:
        return None
    shares = dict(zip(networks, (won_K / counted).tolist(), strict=True))
    return MemberChoice(list(networks)[int(value_K.argmax())], shares)
