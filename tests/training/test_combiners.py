import numpy as np
import pytest

from skindx.core.errors import UserError
from skindx.models.combination import Combination, fit_temperature, log
from skindx.training.config.ensemble import Combiner, EnsembleSettings, MajorityVote, Mean
from skindx.training.ensembles.ready_ensemble import (
    Evidence,
    assemble,
    fit,
    gather_evidence,
    soften,
)


def _evidence(knows: list[float], images: int = 240, seed: int = 0) -> Evidence:
    """Units that know so much of the truth; two images a group."""
    random = np.random.default_rng(seed)
    truth_N = random.integers(0, 3, images)
    scores_UNC = np.array(knows)[:, None, None] * np.eye(3)[truth_N] + random.normal(
        size=(len(knows), images, 3)
    )
    log_UNC = scores_UNC - np.logaddexp.reduce(scores_UNC, axis=2, keepdims=True)
    return Evidence(log_UNC, truth_N, tuple(f"g{index // 2}" for index in range(images)))


def test_the_plain_mean_is_fitted_as_ever() -> None:
    evidence = _evidence([2.0, 1.0])
    fitted = fit(Mean(), evidence)
    temperatures = [fit_temperature(log_NC, evidence.truth_N) for log_NC in evidence.log_UNC]
    assert list(fitted.temperatures) == temperatures
    mean_NC = soften(evidence.log_UNC, temperatures).mean(axis=0)
    assert fitted.temperature == fit_temperature(log(mean_NC), evidence.truth_N)
    assert fitted.combination == Combination()


@pytest.mark.parametrize("combiner", [Mean(), Mean(space="logit"), MajorityVote()])
def test_few_images_sharpen_no_mean_beyond_the_sharper_member(combiner: Combiner) -> None:
    evidence = _evidence([3.0, 1.5], images=6, seed=2)
    fitted = fit(combiner, evidence)
    assert fitted.temperature > 0.999
    one_group = Evidence(evidence.log_UNC, evidence.truth_N, ("g",) * 6)
    assert fit(combiner, one_group).temperature > 0.999
    if combiner == Mean():
        soft_UNC = soften(evidence.log_UNC, fitted.temperatures)
        answer_NC = fitted.probabilities(evidence.log_UNC)
        assert (answer_NC.max(axis=1) <= soft_UNC.max(axis=(0, 2)) + 1e-9).all()


def test_many_images_that_bear_it_out_sharpen_the_mean() -> None:
    evidence = _evidence([2.0, 2.0], images=2000)
    fitted = fit(Mean(), evidence)
    assert fitted.temperature < 0.9
    mean_NC = soften(evidence.log_UNC, fitted.temperatures).mean(axis=0)
    sharper_NC = mean_NC ** (1 / fitted.temperature)
    sharper_NC /= sharper_NC.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(fitted.probabilities(evidence.log_UNC), sharper_NC, rtol=1e-6)
    # So much is not known of five patients, of whom one has all the wrong answers.
    order_N = np.argsort(mean_NC.argmax(axis=1) == evidence.truth_N, kind="stable")
    patients_N = np.empty(2000, np.int64)
    patients_N[order_N] = np.arange(2000) // 400
    five = Evidence(evidence.log_UNC, evidence.truth_N, tuple(map(str, patients_N)))
    assert fit(Mean(), five).temperature == 1


@pytest.mark.parametrize("kind", ["weighted", "greedy"])
def test_a_retired_combiner_is_refused_in_a_sentence(kind: str) -> None:
    with pytest.raises(UserError, match=f"combine={kind} is gone .*take kind mean or vote"):
        EnsembleSettings.parse({"combine": {"kind": kind, "space": "logit"}})


def test_what_an_older_version_chose_by_is_the_mean() -> None:
    assert EnsembleSettings.parse({"combine": {"kind": "auto"}}).combine == Mean()


def test_a_unit_shares_its_weight_among_its_folds() -> None:
    for evidence in (_evidence([1.0, 2.0]), _evidence([2.0, 1.0])):
        spread = assemble(Mean(), evidence, {"k": ("k0", "k1"), "p": ("p",)})
        first, second = fit(Mean(), evidence).temperatures
        assert spread.temperatures == (first, first, second)
    evidence = _evidence([2.0, 1.0], images=24)
    assembly = assemble(Mean(), evidence, {"k": ("k0", "k1", "k2"), "p": ("p",)})
    assert assembly.combination.weights == pytest.approx((1 / 6, 1 / 6, 1 / 6, 1 / 2))
    assert len(set(assembly.temperatures[:3])) == 1
    only = assemble(Mean(), evidence.__class__(evidence.log_UNC[:1], *_rest(evidence)), {"k": "ab"})
    assert (only.members, only.combination) == (("a", "b"), Combination())


def _rest(evidence: Evidence) -> tuple[np.ndarray, tuple[str, ...]]:
    return evidence.truth_N, evidence.groups


def test_the_word_of_folds_by_hand() -> None:
    """Four images in two folds; a plain member was predicted on the first and the third."""
    masks = {
        "k": {"k0": np.array([1, 1, 0, 0], bool), "k1": np.array([0, 0, 1, 1], bool)},
        "p": {"p": np.array([1, 0, 1, 0], bool)},
    }
    predicted = {
        "k0": np.log([[0.9, 0.1], [0.8, 0.2]]),
        "k1": np.log([[0.7, 0.3], [0.6, 0.4]]),
        "p": np.log([[0.5, 0.5], [0.4, 0.6]]),
    }
    evidence = gather_evidence(masks, predicted, np.array([0, 1, 0, 1]), ["a", "b", "c", "d"])
    np.testing.assert_allclose(np.exp(evidence.log_UNC[0]), [[0.9, 0.1], [0.7, 0.3]])
    np.testing.assert_allclose(np.exp(evidence.log_UNC[1]), [[0.5, 0.5], [0.4, 0.6]])
    assert evidence.groups == ("a", "c")
    assert evidence.truth_N.tolist() == [0, 0]
    # Two that left out the same fold speak with their mean.
    masks["k"]["k2"] = masks["k"]["k0"]
    predicted["k2"] = np.log([[0.7, 0.3], [0.2, 0.8]])
    evidence = gather_evidence(masks, predicted, np.array([0, 1, 0, 1]), ["a", "b", "c", "d"])
    np.testing.assert_allclose(np.exp(evidence.log_UNC[0]), [[0.8, 0.2], [0.7, 0.3]])
