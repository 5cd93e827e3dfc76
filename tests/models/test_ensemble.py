import numpy as np
import pytest
import torch

from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess
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
