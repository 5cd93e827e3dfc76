"""The better member is chosen by the figure that is compared, and only where that is no chance."""

import dataclasses

import numpy as np
import pytest
from evaluation_fakes import CLASSES, records_of, simulate
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from skindx.evaluation.answers import Answers
from skindx.evaluation.member_gains import (
    choose_network,
    figure_gain,
    member_gains,
    networks_of,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


def sure_of(named_N: Ints, confidence: float, classes: int = 4) -> Floats:
    """Return rows that name a class with this confidence, the rest shared by the others."""
    p_NC = np.full((len(named_N), classes), (1 - confidence) / (classes - 1))
    p_NC[np.arange(len(named_N)), named_N] = confidence
    return p_NC


def whole(n: int = 60, seed: int = 0) -> Answers:
    labels, table = simulate(n, seed)
    return Answers.join(records_of(labels), table, CLASSES, ["alpha", "beta"])


def test_the_choice_by_log_loss_is_not_the_choice_by_balanced_accuracy() -> None:
    """A modest network loses little by its mistakes: chosen by its loss it is an easy rival."""
    truth_N = np.arange(200) % 4
    wrong_N = (truth_N + 1) % 4
    bold_NC = sure_of(np.where(np.arange(200) < 150, truth_N, wrong_N), 0.999)
    modest_NC = sure_of(np.where(np.arange(200) < 110, truth_N, wrong_N), 0.6)
    networks, groups_N = {"bold": bold_NC, "modest": modest_NC}, np.arange(200).astype(str)
    chosen = {
        key: choose_network(key, networks, truth_N, groups_N, draws=200)
        for key in ("log_loss", "balanced_accuracy")
    }
    by_loss, by_accuracy = chosen["log_loss"], chosen["balanced_accuracy"]
    assert by_loss
    assert by_accuracy
    assert (by_loss.best, by_accuracy.best) == ("modest", "bold")
    assert by_loss.sure
    assert by_accuracy.sure
    # A gain in balanced accuracy over the network that has the lower loss is an artefact.
    ensemble_NC = bold_NC
    gains = [
        figure_gain(
            "balanced_accuracy", ensemble_NC, networks, truth_N, groups_N, choice=one, draws=50
        )
        for one in (by_loss, by_accuracy)
    ]
    assert [gain.gains[0].gain.value for gain in gains if gain] == pytest.approx([0.2, 0.0])


def test_of_equal_members_each_stands_with_half_of_the_draws() -> None:
    answers = whole()
    twin_NMC = np.repeat(answers.members_NMC[:, :1], 2, axis=1)
    twins = dataclasses.replace(answers, members_NMC=twin_NMC)
    for gain in member_gains(twins, twins, draws=30):
        assert gain.choice is not None
        assert gain.choice.shares == {"alpha": 0.5, "beta": 0.5}
        assert gain.over_better is None
        assert [one.member for one in gain.gains] == ["alpha", "beta"]


@pytest.mark.parametrize("without", ["validation", "mix"])
def test_what_is_not_known_is_left_out(without: str) -> None:
    answers, mix_C = whole(), np.array([0.7, 0.1, 0.1, 0.1])
    if without == "mix":
        keys = [gain.key for gain in member_gains(answers, answers, draws=20)]
        assert keys == ["top1", "balanced_accuracy", "auroc", "log_loss"]
        return
    gains = member_gains(dataclasses.replace(answers, mix_C=mix_C), draws=20)
    assert [gain.key for gain in gains][2] == "balanced_rule_accuracy"
    assert {len(gain.gains) for gain in gains} == {2}
    assert [gain.choice for gain in gains] == [None] * 5
    only = dataclasses.replace(answers, members=("a",), members_NMC=answers.members_NMC[:, :1])
    assert member_gains(only, only) == ()


def test_the_choice_never_sees_the_test_images() -> None:
    answers, validation = whole(seed=1), whole(seed=2)
    worst = dataclasses.replace(answers, truth_N=(answers.truth_N + 1) % 3)
    here, there = (member_gains(one, validation, draws=50) for one in (answers, worst))
    assert [gain.choice for gain in here] == [gain.choice for gain in there]


def test_a_sure_choice_is_compared_alone_and_images_of_a_group_choose_together() -> None:
    answers = whole(80)
    truth_N = answers.truth_N
    right_N = np.arange(80) % 8 != 0
    good_NC = sure_of(np.where(right_N, truth_N, (truth_N + 1) % 4), 0.7)
    bad_NC = sure_of(np.where(np.arange(80) % 2 == 0, truth_N, (truth_N + 1) % 4), 0.7)
    validation = dataclasses.replace(answers, members_NMC=np.stack([bad_NC, good_NC], axis=1))
    (gain,) = member_gains(answers, validation, keys=["top1"], draws=100)
    assert gain.over_better is not None
    assert (gain.over_better.member, len(gain.gains)) == ("beta", 1)
    # In five groups of images chance decides more often than in eighty.
    networks = networks_of(validation)
    few = choose_network("top1", networks, truth_N, (np.arange(80) % 2).astype(str), draws=100)
    assert few is not None
    assert few.shares["beta"] < 1
    assert gain.choice is not None
    assert gain.choice.shares["beta"] == pytest.approx(1, abs=0.01)


@given(st.integers(0, 2**32), st.integers(2, 5))
@settings(max_examples=20)
def test_shares_of_the_draws_sum_to_one_and_follow_the_networks(seed: int, networks: int) -> None:
    random = np.random.default_rng(seed)
    truth_N, groups_N = random.integers(4, size=30), random.integers(9, size=30).astype(str)
    made = {f"n{k}": random.dirichlet(np.ones(4), size=30) for k in range(networks)}
    first = choose_network("balanced_accuracy", made, truth_N, groups_N, draws=20)
    turned = choose_network(
        "balanced_accuracy", dict(reversed(made.items())), truth_N, groups_N, draws=20
    )
    assert first
    assert turned
    assert sum(first.shares.values()) == pytest.approx(1)
    assert first.shares == pytest.approx(turned.shares)


def test_members_of_another_bundle_choose_nothing() -> None:
    answers = whole(20)
    with pytest.raises(ValueError, match="but the validation has"):
        member_gains(answers, dataclasses.replace(answers, members=("x", "y")))
