import numpy as np
import pytest
import torch

from skindx.models.classifier import ClassifierSettings, build_classifier
from skindx.models.ensemble import Ensemble, Member, combine
from skindx.models.preprocess import Preprocess

PICTURES = [
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
    probabilities_NC, member_MNC = Ensemble(members).probabilities(PICTURES)
    assert member_MNC.shape == (2, 3, 4)
    np.testing.assert_allclose(probabilities_NC, member_MNC.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(member_MNC.sum(axis=2), 1)


def test_batches_do_not_change_the_answer() -> None:
    member = _member("a", 64, 1.0)
    np.testing.assert_allclose(
        member.log_probabilities(PICTURES, batch=1), member.log_probabilities(PICTURES), atol=1e-5
    )


def test_combine_by_hand() -> None:
    member_MNC = np.array([[[0.8, 0.2]], [[0.6, 0.4]]])
    assert combine(member_MNC, 1.0)[0] == pytest.approx([0.7, 0.3])
    # T = 1/2 squares the odds: 0.49 / 0.09.
    assert combine(member_MNC, 0.5)[0] == pytest.approx([0.49 / 0.58, 0.09 / 0.58])


def test_certain_members_stay_finite() -> None:
    assert combine(np.array([[[1.0, 0.0]]]), 1.7)[0] == pytest.approx([1.0, 0.0])
