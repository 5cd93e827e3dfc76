import numpy as np
import pytest
import torch

from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess, Views, views_of
from skindx.models.ensemble import Member

SIZE = Preprocess(size=64, crop=1.0)


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


def _member(views: Views) -> Member:
    torch.manual_seed(0)
    classifier = build_classifier(ClassifierSettings(model="test_resnet", preprocess=SIZE), 4)
    torch.nn.init.normal_(classifier.net.get_classifier().weight)
    return Member("a", classifier.eval(), SIZE, views=views)


def test_views_by_hand() -> None:
    square = torch.tensor([[1, 2], [3, 4]]).view(1, 2, 2, 1)
    seen = [view.flatten().tolist() for view in views_of(square, 8)]
    assert seen == [
        [1, 2, 3, 4],
        [2, 1, 4, 3],
        [3, 4, 1, 2],
        [4, 3, 2, 1],
        [1, 3, 2, 4],
        [2, 4, 1, 3],
        [3, 1, 4, 2],
        [4, 2, 3, 1],
    ]
    for views in (1, 2, 4):
        assert [view.flatten().tolist() for view in views_of(square, views)] == seen[:views]


def test_the_answer_is_the_mean_probability_of_the_views(image: np.ndarray) -> None:
    plain = _member(1)
    flips = [image, image[:, ::-1], image[::-1], image[::-1, ::-1]]
    turned = [np.ascontiguousarray(flip.transpose(1, 0, 2)) for flip in flips]
    alone_8C = np.exp(plain.log_probabilities([np.ascontiguousarray(f) for f in flips] + turned))
    for views in (2, 4, 8):
        (log_C,) = _member(views).log_probabilities([image])
        np.testing.assert_allclose(np.exp(log_C), alone_8C[:views].mean(axis=0), rtol=1e-5)


def test_all_views_of_an_image_get_one_answer(image: np.ndarray) -> None:
    member = _member(8)
    turns = [np.ascontiguousarray(np.rot90(image, turn)) for turn in range(4)]
    answers = np.exp(member.log_probabilities([*turns, np.ascontiguousarray(image[:, ::-1])]))
    np.testing.assert_allclose(answers, np.broadcast_to(answers[0], answers.shape), rtol=1e-5)
    once = np.exp(_member(1).log_probabilities(turns))
    assert not np.allclose(once[0], once[1], rtol=1e-3)
