"""Real dermoscopic photos against what is none, in the eyes of a network not trained on either."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from skindx.imaging.decode import decode
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier, load_weights
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.ensemble import Ensemble, Member
from skindx.models.ood.ood_check import features_of, fit_check
from skindx.models.ood.ood_detectors import DEFAULT
from skindx.models.ood.ood_features import Features, TrainingFeatures

Images = list[NDArray[np.uint8]]


def network(weights: Path) -> Ensemble:
    preprocess = Preprocess(size=96, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    settings = ClassifierSettings(
        model="mobilenetv2_100",
        model_args={"pad_type": "same", "bn_eps": 1e-3},
        preprocess=preprocess,
    )
    classifier = build_classifier(settings, classes=2)
    load_weights(classifier, weights)
    return Ensemble((Member("given", classifier.eval(), preprocess),))


def photos(folder: Path, each: int, skip: int = 0) -> tuple[Images, list[str]]:
    """Return `each` photos of every class."""
    files = [f for of in sorted(folder.iterdir()) for f in sorted(of.iterdir())[skip:][:each]]
    return [decode(file.read_bytes()) for file in files], [file.parent.name for file in files]


def measured(ensemble: Ensemble, images: Images) -> Features:
    return features_of(ensemble, images, ensemble.predict_with_features(images))


def letters(seed: int) -> NDArray[np.uint8]:
    random = np.random.default_rng(seed)
    page = np.full((180, 180, 3), 240, np.uint8)
    for line in range(15, 180, 14):
        text = "".join(map(chr, random.integers(97, 123, 24)))
        cv2.putText(page, text, (4, line), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (20, 20, 20), 1)
    return page


@pytest.mark.real
def test_what_is_no_skin_is_out_of_distribution(real: Path) -> None:
    ensemble = network(real / "weights" / "mobilenetv2_100_qat.pth")
    learned, labels = photos(real / "isic9" / "Train", 14)
    held, _ = photos(real / "isic9" / "Train", 12, skip=60)
    new, _ = photos(real / "isic9" / "Test", 5)
    random = np.random.default_rng(0)
    other = [letters(seed) for seed in range(15)]
    other += [random.integers(0, 256, (180, 180, 3), dtype=np.uint8) for _ in range(15)]
    known = TrainingFeatures(measured(ensemble, learned), np.array(labels), (), ())
    check = fit_check(DEFAULT, known, measured(ensemble, held))
    assert check is not None
    asked = measured(ensemble, new + other)
    truth = [0] * len(new) + [1] * len(other)
    assert roc_auc_score(truth, check.combined(asked)) > 0.97
    p_values_Q = check.p_values(asked)
    assert np.mean(p_values_Q[: len(new)] <= check.rate) < 0.1
    assert np.mean(p_values_Q[len(new) :] <= check.rate) > 0.9
