import numpy as np
import pytest
import torch

from skindx.models.class_calibration import ClassCalibration
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.combination import Combination
from skindx.models.ensemble import Ensemble, Member, combine

IMAGES = [
    np.random.default_rng(index).integers(0, 256, shape, dtype=np.uint8)
    for index, shape in enumerate([(80, 100, 3), (64, 64, 3), (120, 70, 3)])
]


def _member(name: str, size: int, temperature: float) -> Member:
    torch.manual_seed(size)
    preprocess = Preprocess(size=size)
    classifier = build_classifier(ClassifierSettings(model="test_resnet", preprocess=preprocess), 4)
    return Member(name, classifier.eval(), preprocess, temperature)


def test_members_of_different_sizes_average() -> None:
    members = (_member("a", 64, 1.0), _member("b", 96, 2.0))
    probabilities_NC, member_MNC = Ensemble(members).probabilities(IMAGES)
    assert member_MNC.shape == (2, 3, 4)
    np.testing.assert_allclose(probabilities_NC, member_MNC.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(member_MNC.sum(axis=2), 1)


def test_batches_do_not_change_the_answer() -> None:
    member = _member("a", 64, 1.0)
    np.testing.assert_allclose(
        member.log_probabilities(IMAGES, batch=1), member.log_probabilities(IMAGES), atol=1e-5
    )


def test_combine_by_hand() -> None:
    member_MNC = np.array([[[0.8, 0.2]], [[0.6, 0.4]]])
    assert combine(member_MNC, 1.0)[0] == pytest.approx([0.7, 0.3])
    # T = 1/2 squares the odds: 0.49 / 0.09.
    assert combine(member_MNC, 0.5)[0] == pytest.approx([0.49 / 0.58, 0.09 / 0.58])


def test_certain_members_stay_finite() -> None:
    assert combine(np.array([[[1.0, 0.0]]]), 1.7)[0] == pytest.approx([1.0, 0.0])


def test_a_look_says_the_same_and_shows_what_from() -> None:
    ensemble = Ensemble((_member("a", 64, 1.0), _member("b", 96, 2.0)), 0.5)
    output = ensemble.predict_with_features(IMAGES)
    probabilities_NC, member_MNC = ensemble.probabilities(IMAGES)
    assert np.array_equal(output.probabilities_NC, probabilities_NC)
    assert np.array_equal(output.member_MNC, member_MNC)
    np.testing.assert_allclose(np.linalg.norm(output.embeddings_ND, axis=1), 1, atol=1e-5)
    assert [tuple(map_.shape[:1]) for map_ in output.maps] == [(3,), (3,)]


@pytest.mark.parametrize("model", ["test_resnet", "test_convnext", "mobilenetv2_100"])
def test_body_and_head_are_the_network(model: str) -> None:
    settings = ClassifierSettings(model=model, preprocess=Preprocess(size=64))
    classifier = build_classifier(settings, 4).eval()
    squares = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    with torch.inference_mode():
        map_ = classifier.forward_features(squares)
        assert torch.equal(classifier.forward_head(map_), classifier(squares))
        assert classifier.forward_pooled(map_).ndim == 2


def test_classes_are_calibrated_after_the_temperature_and_before_the_mix() -> None:
    members = (_member("a", 64, 1.0), _member("b", 96, 2.0))
    plain_NC, plain_MNC = Ensemble(members, 0.5).probabilities(IMAGES)
    by_class = ClassCalibration(slope=0.8, biases=(1.0, -0.5, 0.0, -0.5))
    factor_C, mix_C = np.exp(by_class.biases), np.array([2.0, 1.0, 0.5, 1.0])
    served = Ensemble(members, 0.5, log_shifts=tuple(np.log(mix_C)), class_calibration=by_class)
    served_NC, served_MNC = served.probabilities(IMAGES)
    by_hand_NC = plain_NC**0.8 * factor_C * mix_C
    np.testing.assert_allclose(served_NC, by_hand_NC / by_hand_NC.sum(axis=1, keepdims=True))
    # Members are shown by the same biases; the mix is of the ensemble alone, as ever.
    by_hand_MNC = plain_MNC**0.8 * factor_C
    np.testing.assert_allclose(served_MNC, by_hand_MNC / by_hand_MNC.sum(axis=2, keepdims=True))
    output = served.predict_with_features(IMAGES)
    assert np.array_equal(output.probabilities_NC, served_NC)
    assert np.array_equal(output.member_MNC, served_MNC)


def test_members_of_a_vote_are_shown_as_they_voted() -> None:
    members = (_member("a", 64, 1.0), _member("b", 96, 2.0))
    by_class = ClassCalibration(slope=1, biases=(3.0, -1.0, -1.0, -1.0))
    for rule, same in (("vote", True), ("logit", False)):
        plain = Ensemble(members, combination=Combination(rule=rule))
        served = Ensemble(members, 1.0, plain.combination, class_calibration=by_class)
        (p_NC, p_MNC), (q_NC, q_MNC) = plain.probabilities(IMAGES), served.probabilities(IMAGES)
        assert np.array_equal(p_MNC, q_MNC) == same
        assert (q_NC[:, 0] > p_NC[:, 0]).all()
