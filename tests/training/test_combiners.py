import json

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
    fitted = fit(Mean(space="probability"), evidence)
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


def test_the_mean_of_logarithms_is_chosen_where_it_gains_beyond_chance() -> None:
    """Independent noise on the logits is averaged best as logarithms; confusion is not."""
    evidence = _evidence([2.0, 2.0], images=1500)
    assert fit(Mean(), evidence).combination.rule == "logit"
    assert fit(Mean(space="probability"), evidence).combination == Combination()
    assert fit(Mean(space="logit"), evidence).combination.rule == "logit"
    few = Evidence(evidence.log_UNC[:, :40], evidence.truth_N[:40], evidence.groups[:40])
    assert fit(Mean(), few).combination == Combination()
    one = Evidence(evidence.log_UNC[:1], *_rest(evidence))
    assert fit(Mean(), one).combination == Combination()


def test_a_bundle_of_weighted_losses_answers_for_the_mix_that_is_there() -> None:
    """Members of a loss with weights n^-0.5 say p_k n_k^-0.5; what is served sums to the counts."""
    random, share_C = np.random.default_rng(5), np.array([0.85, 0.1, 0.05])
    truth_N = random.choice(3, 1500, p=share_C)
    noise_NC, own_UNC = random.normal(size=(1500, 3)), random.normal(size=(2, 1500, 3))
    scores_UNC = 2.25 * np.eye(3)[truth_N] + 1.5 * noise_NC + 0.3 * own_UNC
    scores_UNC += 0.5 * np.log(share_C)  # log p_k - 0.5 log n_k, up to a constant
    log_UNC = scores_UNC - np.logaddexp.reduce(scores_UNC, axis=2, keepdims=True)
    evidence = Evidence(log_UNC, truth_N, tuple(map(str, range(1500))))
    expected_C = 0.5 * np.log(share_C) - 0.5 * np.log(share_C).mean()
    units, keys = {"a": ("a",), "b": ("b",)}, ("nevus", "mel", "bcc")
    assembly = assemble(Mean(), evidence, units, keys, expected_C)
    assert assembly.by_class is not None
    p_NC = assembly.fitted.probabilities(log_UNC)
    np.testing.assert_allclose(np.bincount(truth_N) / p_NC.sum(axis=0), 1, atol=0.02)
    soft_UNC = soften(log_UNC, assembly.fitted.temperatures)
    assert (np.bincount(truth_N) / soft_UNC.mean(axis=0).sum(axis=0))[2] < 0.8
    report = assembly.report()["calibration by class"]
    assert report["kept"] is True
    assert report["log loss lower by"]["low"] > 0
    assert report["expected biases"]["nevus"] == pytest.approx(expected_C[0])
    assert report["biases"]["nevus"] == pytest.approx(expected_C[0], abs=0.3)
    assert report["too few images, bias 0"] == []
    json.dumps(report, allow_nan=False)
    words = assembly.fitted.by_class.words(keys, expected_C)
    assert "so they are kept" in words
    assert f"nevus {report['biases']['nevus']:+.2f} ({expected_C[0]:+.2f})" in words


def test_a_class_of_nine_images_is_named() -> None:
    evidence = _evidence([2.0], images=300)
    kept_N = np.concatenate(
        [np.flatnonzero(evidence.truth_N != 2), np.flatnonzero(evidence.truth_N == 2)[:9]]
    )
    groups = tuple(evidence.groups[n] for n in kept_N)
    some = Evidence(evidence.log_UNC[:, kept_N], evidence.truth_N[kept_N], groups)
    assembly = assemble(Mean(), some, {"k": ("k",)}, ("a", "b", "c"))
    report = assembly.report()["calibration by class"]
    assert report["too few images, bias 0"] == ["c"]
    assert report["biases"]["c"] == 0
    assert "Fewer than 10 images are of c: the bias stays at 0." in assembly.fitted.by_class.words(
        ("a", "b", "c")
    )
    plain = fit(Mean(), Evidence(some.log_UNC[:, :4], some.truth_N[:4], groups[:4]))
    assert plain.by_class.report(("a", "b", "c")) == {
        "kept": False,
        "why": plain.by_class.words(("a", "b", "c")),
    }
    answer_NC = plain.probabilities(some.log_UNC)
    np.testing.assert_array_equal(plain.by_class.served(answer_NC), answer_NC)


@pytest.mark.parametrize("kind", ["weighted", "greedy"])
def test_a_retired_combiner_is_refused_in_a_sentence(kind: str) -> None:
    with pytest.raises(UserError, match=f"combine={kind} was removed .*use mean or vote"):
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
