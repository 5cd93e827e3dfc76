"""Logits, embeddings and networks: the numbers of predict, before and after calibration."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from skin_photo import skin_photo

import skindx
from skindx.diagnosis.predictor import Predictor
from skindx.models.class_calibration import ClassCalibration
from skindx.models.combination import Combination, Prevalence
from skindx.models.ensemble import Ensemble

PHOTOS = tuple(skin_photo(seed=seed) for seed in range(3))


@pytest.fixture(scope="module")
def loaded(whole_bundle: Path) -> Predictor:
    """Return a predictor that refuses no photo."""
    return replace(Predictor.load(whole_bundle), ood=None)


def model_of(loaded: Predictor, **changed: object) -> skindx.Model:
    return skindx.Model(replace(loaded, ensemble=replace(loaded.ensemble, **changed)))


def four_views(ensemble: Ensemble) -> dict[str, object]:
    """Return all that may stand between logits and an answer."""
    classes = len(ensemble.members[0].classifier.net.get_classifier().bias)
    biases = np.linspace(-1, 1, classes)
    members = (
        replace(ensemble.members[0], views=4, temperature=0.7),
        replace(ensemble.members[1], temperature=1.6),
    )
    return {
        "members": members,
        "combination": Combination(weights=(0.3, 0.7)),
        "class_calibration": ClassCalibration(slope=1.3, biases=tuple(biases)),
        "log_shifts": tuple(biases[::-1] / 2),
    }


def test_calibrated_logits_are_what_predict_says(loaded: Predictor) -> None:
    for changed in ({}, four_views(loaded.ensemble)):
        model = model_of(loaded, **changed)
        table = model.predict(PHOTOS)
        assert table["refused"].null_count == len(PHOTOS)
        said_NC = np.stack([table[f"probability_{key}"] for key in model.classes], axis=1)
        assert model.calibrated(model.logits(PHOTOS)) == pytest.approx(said_NC, abs=1e-12)
    counts = np.arange(1, len(model.classes) + 1)
    mix = Prevalence(tuple(counts / counts.sum()), tuple(counts[::-1] / counts.sum()))
    other = skindx.Model(replace(loaded, prevalence=mix))
    first = other.predict(PHOTOS[:1])
    said_C = [first[f"probability_{key}"][0].as_py() for key in other.classes]
    assert other.calibrated(other.logits(PHOTOS[:1]))[0] == pytest.approx(said_C, abs=1e-12)
    assert said_C != pytest.approx(skindx.Model(loaded).calibrated(other.logits(PHOTOS[:1]))[0])


def test_networks_give_the_same_logits_and_are_copies(loaded: Predictor) -> None:
    model = model_of(loaded, **four_views(loaded.ensemble))
    logits = model.logits(PHOTOS)
    assert [*model.networks] == [*logits]
    for name, network in model.networks.items():
        assert not network.training
        squares_BSS3 = torch.stack([network.preprocess(photo) for photo in PHOTOS])
        assert (squares_BSS3.dtype, squares_BSS3.shape[1:]) == (torch.uint8, (64, 64, 3))
        with torch.inference_mode():
            made = network(squares_BSS3).numpy()
        assert made == pytest.approx(logits[name], abs=1e-4)
    plain = model.networks[[*logits][1]]  # of one view: as timm's own module has them
    square = plain.preprocess(PHOTOS[0])[None]
    normalised = square.permute(0, 3, 1, 2) * plain.classifier.scale + plain.classifier.shift
    assert plain.classifier.net(normalised).detach().numpy() == pytest.approx(
        logits[[*logits][1]][:1], abs=1e-4
    )
    loss = model.networks[next(iter(logits))](square.float().requires_grad_()).sum()
    loss.backward()  # differentiable by its weights
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.zero_()
    after = model.logits(PHOTOS)
    assert all(np.array_equal(after[name], logits[name]) for name in logits)


def test_embeddings_are_those_that_the_answers_rest_on(loaded: Predictor) -> None:
    model = skindx.Model(loaded)
    embeddings_ND = model.embeddings(PHOTOS)
    assert (embeddings_ND.dtype, len(embeddings_ND)) == (np.float32, 3)
    assert np.linalg.norm(embeddings_ND, axis=1) == pytest.approx(1, abs=1e-6)
    parts = [model.embeddings(PHOTOS, member=name) for name in model.networks]
    units = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in parts]
    joined = np.concatenate(units, axis=1) / np.sqrt(len(units))
    assert embeddings_ND == pytest.approx(joined, abs=1e-6)
    with pytest.raises(skindx.UserError, match=r"no network 'other'; give .+, "):
        model.embeddings(PHOTOS, member="other")


def test_what_cannot_be_read_has_rows_of_nan_and_no_gate_is_asked(loaded: Predictor) -> None:
    model = skindx.Model(loaded)
    blurred, tiny = skin_photo(blur=9), np.zeros((20, 90, 3), np.uint8)
    given = ["gone.jpg", PHOTOS[0], b"GIF89a", blurred, tiny, 3.5]
    [part] = model.iter_features(given)
    kept = [not reason for reason in part.reasons]
    assert kept == [False, True, False, True, False, False]
    assert all(reason.endswith(".") for reason in part.reasons if reason)
    for rows in (part.embeddings, *part.logits.values(), *part.pooled.values()):
        assert np.isfinite(rows).all(axis=1).tolist() == kept
        assert np.isnan(rows).all(axis=1).tolist() == [not one for one in kept]
    assert model.predict([blurred])["refused"].to_pylist() == ["blur"]
    assert np.isnan(model.calibrated(part.logits)).all(axis=1).tolist() == [not k for k in kept]
    nothing = model.logits(["gone.jpg"])
    width = len(model.classes)
    assert {name: rows.shape for name, rows in nothing.items()} == dict.fromkeys(
        model.networks, (1, width)
    )
    assert model.embeddings([]).shape == (0, part.embeddings.shape[1])


def test_batches_change_no_digit_and_a_stream_may_have_no_end(loaded: Predictor) -> None:
    model = skindx.Model(loaded)
    counts: list[tuple[str, int, int]] = []
    endless = model.iter_features(
        itertools.cycle(PHOTOS), batch=2, progress=lambda *at: counts.append(at)
    )
    parts = [next(endless) for _ in range(3)]
    assert counts == [("predict", 2, 0), ("predict", 4, 0), ("predict", 6, 0)]
    rows = np.concatenate([part.embeddings for part in parts])
    assert np.array_equal(rows, model.embeddings([*PHOTOS, *PHOTOS], batch=6))
    one = model.logits(PHOTOS, batch=1)
    assert all(np.array_equal(one[name], rows) for name, rows in model.logits(PHOTOS).items())


def test_wrong_arguments_are_one_sentence(loaded: Predictor) -> None:
    model = skindx.Model(loaded)
    logits = model.logits(PHOTOS[:2])
    first, second = logits
    for given, said in (
        ({first: logits[first]}, "of each network"),
        ({**logits, "other": logits[first]}, "of each network"),
        ({first: logits[first], second: logits[second][:1]}, "for each photo and"),
        ({name: rows[:, :2] for name, rows in logits.items()}, "for each photo and"),
    ):
        with pytest.raises(skindx.UserError, match=said):
            model.calibrated(given)
    with pytest.raises(skindx.UserError, match="the photos are not a list"):
        model.logits("photo.jpg")
    with pytest.raises(skindx.UserError, match="at least 1"):
        model.embeddings(PHOTOS, batch=0)
    with pytest.raises(skindx.UserError, match="has no keyword 'membr'"):
        model.embeddings(PHOTOS, membr="a")  # type: ignore[call-arg]


def test_preprocess_takes_what_a_dataset_of_torch_gives(loaded: Predictor) -> None:
    network = next(iter(skindx.Model(loaded).networks.values()))
    pixels = np.full((90, 120, 3), 120, np.uint8)
    same = [network.preprocess(one) for one in (pixels, Image.fromarray(pixels))]
    assert torch.equal(*same)
    with pytest.raises(skindx.UserError, match=r"gone\.jpg does not exist"):
        network.preprocess("gone.jpg")
