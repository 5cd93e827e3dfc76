"""Grad-CAM of single networks against captum, and of an ensemble against its definition."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from captum.attr import LayerGradCam
from PIL import Image
from skin_photo import skin_pixels

from skindx.diagnosis.heat_maps import grad_cam, heat_maps, heat_png, is_off
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess, framed_square
from skindx.models.combination import Combination
from skindx.models.ensemble import Ensemble, Member

PHOTOS = [skin_pixels(90, 70, seed=seed) for seed in (1, 2)]
CLASSES = [3, 1]


def member(model: str, **model_args: object) -> Member:
    torch.manual_seed(1)
    preprocess = Preprocess(size=64)
    settings = ClassifierSettings(model=model, model_args=model_args, preprocess=preprocess)
    classifier = build_classifier(settings, 5).eval()
    head = classifier.net.get_classifier()
    # All weights point up, so that no class' heat is zero everywhere by chance.
    torch.nn.init.uniform_(head.weight)  # type: ignore[union-attr, arg-type]
    return Member(model, classifier, preprocess)


@pytest.fixture(scope="module")
def cnn() -> Member:
    return member("test_resnet")


def maps_of(*members: Member) -> tuple[torch.Tensor, ...]:
    return Ensemble(members).predict_with_features(PHOTOS).maps


def test_a_cnns_heat_is_captums(cnn: Member) -> None:
    (map_,) = maps_of(cnn)
    ours_Nhw = grad_cam(cnn, map_, CLASSES)
    squares = torch.from_numpy(np.stack([framed_square(photo, cnn.preprocess) for photo in PHOTOS]))
    theirs = LayerGradCam(cnn.classifier, cnn.classifier.net.layer4).attribute(
        squares.float(), torch.tensor(CLASSES), relu_attributions=True
    )
    assert ours_Nhw.max() > 0
    np.testing.assert_allclose(ours_Nhw, theirs[:, 0].detach().numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "args"),
    [
        ("test_convnext", {}),
        ("test_efficientnet", {}),
        ("mobilenetv3_small_050", {}),
        ("swin_tiny_patch4_window7_224", {"img_size": 64, "embed_dim": 24, "depths": (1, 1, 1, 1)}),
        ("test_vit", {"img_size": 64, "global_pool": "avg"}),
    ],
)
def test_maps_of_every_layout_become_places(model: str, args: dict[str, object]) -> None:
    one = member(model, **args)
    (map_,) = maps_of(one)
    cam_Nhw = grad_cam(one, map_, CLASSES)
    assert cam_Nhw.ndim == 3
    assert cam_Nhw.shape[1] == cam_Nhw.shape[2] >= 2
    assert cam_Nhw.max() > 0
    assert not map_.requires_grad


@pytest.mark.parametrize(
    ("model", "args"),
    [
        ("swin_tiny_patch4_window7_224", {"img_size": 64, "embed_dim": 24, "depths": (1, 1, 1, 1)}),
        ("test_vit", {"img_size": 64, "global_pool": "avg"}),
    ],
)
def test_channels_last_and_tokens_stand_where_they_belong(
    model: str, args: dict[str, object]
) -> None:
    one = member(model, **args)
    (map_,) = maps_of(one)
    cam_hw = grad_cam(one, map_, CLASSES)[0]
    row, column = np.unravel_index(cam_hw.argmax(), cam_hw.shape)
    cold = map_.clone()
    if cold.ndim == 3:
        prefix = one.classifier.net.num_prefix_tokens
        assert isinstance(prefix, int)
        cold[0, prefix + row * cam_hw.shape[1] + column] = 0
    else:
        cold[0, row, column] = 0
    changed_hw = np.abs(grad_cam(one, cold, CLASSES)[0] - cam_hw)
    assert np.unravel_index(changed_hw.argmax(), cam_hw.shape) == (row, column)


def test_a_class_token_has_heat_and_the_network_is_left_as_it_was() -> None:
    reader = member("test_vit", img_size=64, global_pool="token", class_token=True)
    (map_,) = maps_of(reader)
    assert not grad_cam(reader, map_, CLASSES).any()
    for heat_HW in heat_maps(Ensemble((reader,)), [map_], CLASSES, PHOTOS):
        assert heat_HW is not None
        assert heat_HW.max() == pytest.approx(1)
    assert not reader.classifier.net.blocks[0]._forward_pre_hooks
    assert torch.equal(maps_of(reader)[0], map_)


def test_members_count_by_their_weights(cnn: Member) -> None:
    other = member("test_efficientnet")
    maps = maps_of(cnn, other)
    first, second, mixed = (
        heat_maps(
            Ensemble((cnn, other), combination=Combination(weights=weights)), maps, CLASSES, PHOTOS
        )[0]
        for weights in ((1.0, 0.0), (0.0, 1.0), (0.75, 0.25))
    )
    assert first is not None
    assert second is not None
    expected = 0.75 * first + 0.25 * second
    np.testing.assert_allclose(mixed, expected / expected.max(), atol=1e-5)


def test_heat_lies_where_the_network_looked(cnn: Member) -> None:
    """Half of the width beside the central square is cold; the square of a crop is smaller."""
    narrow = replace(cnn, preprocess=Preprocess(size=64, crop=0.5))
    photo = skin_pixels(180, 90)
    for member, share in ((cnn, 0.9), (narrow, 0.5)):
        maps = Ensemble((member,)).predict_with_features([photo]).maps
        (heat_HW,) = heat_maps(Ensemble((member,)), maps, [0], [photo])
        assert heat_HW is not None
        assert heat_HW.shape == (160, 320)
        assert heat_HW.max() == pytest.approx(1)
        side = 160 * share
        rows, columns = np.nonzero(heat_HW)
        assert abs(rows - 79.5).max() <= side / 2
        assert abs(columns - 159.5).max() <= side / 2


def test_heat_of_a_whole_photo_lies_in_its_pixels_and_not_in_the_bars(
    cnn: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A map of 8 x 8 places over a photo of 2 : 1: rows 0, 1, 6 and 7 are bars."""
    whole = replace(cnn, preprocess=Preprocess(size=64, frame="whole"))
    photo = skin_pixels(180, 90)
    places_8 = np.arange(8)
    for row, column, heats in ((2, 7, True), (0, 3, False), (5, 0, True)):
        cam_188 = np.zeros((1, 8, 8), np.float32)
        cam_188[0, row, column] = 1.0
        cam_188[0, 7] = 5 * (places_8 == 4)  # the hottest place of all is a bar
        monkeypatch.setattr("skindx.diagnosis.heat_maps.grad_cam", lambda *_, cam=cam_188: cam)
        (heat_HW,) = heat_maps(Ensemble((whole,)), maps_of(whole), [0], [photo])
        if not heats:
            assert heat_HW is None
            continue
        assert heat_HW is not None
        assert heat_HW.shape == (160, 320)
        hottest = np.unravel_index(heat_HW.argmax(), heat_HW.shape)
        assert hottest[0] == pytest.approx((row + 0.5) * 40 - 80, abs=20)
        assert hottest[1] == pytest.approx((column + 0.5) * 40, abs=20)
        assert heat_HW.max() == 1


def test_heat_in_the_bars_takes_none_of_a_members_weight(
    cnn: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = replace(cnn, preprocess=Preprocess(size=64, frame="whole"))
    cams = [np.zeros((1, 8, 8), np.float32) for _ in range(2)]
    cams[0][0, 3, 2], cams[0][0, 0, 0], cams[1][0, 3, 5] = 1, 5, 1  # of the first, 5 in a bar
    given = iter(cams)
    monkeypatch.setattr("skindx.diagnosis.heat_maps.grad_cam", lambda *_: next(given))
    ensemble = Ensemble((whole, whole))
    (heat_HW,) = heat_maps(ensemble, maps_of(whole, whole), [0], [skin_pixels(180, 90)])
    assert heat_HW is not None
    assert heat_HW[:, :160].max() == pytest.approx(heat_HW[:, 160:].max(), rel=1e-3)


def test_the_image_is_clear_where_it_is_cold_and_lets_skin_through() -> None:
    heat_HW = np.tile(np.linspace(0, 1, 320, dtype=np.float32), (240, 1))
    data = heat_png(heat_HW)
    assert len(data) < 20_000
    image = Image.open(io.BytesIO(data))
    assert image.size == (320, 240)
    opacity_W = np.asarray(image.convert("RGBA"))[0, :, 3].astype(int)
    assert opacity_W[0] == 0
    assert (np.diff(opacity_W) >= 0).all()
    assert 100 < opacity_W[-1] < 200


def test_a_map_is_off_a_lesion_where_most_of_its_strongest_region_is() -> None:
    heat_HW = np.zeros((60, 80), np.float32)
    heat_HW[2:12, 2:12] = 1
    lesion_HW = np.zeros((30, 40), np.bool_)  # an outline has fewer pixels
    lesion_HW[10:20, 12:28] = True
    assert is_off(heat_HW, lesion_HW)
    assert not is_off(heat_HW, None)
    heat_HW[25:45, 30:50] = 0.9  # a larger part of what is strongest lies on the lesion
    assert not is_off(heat_HW, lesion_HW)
    heat_HW[25:45, 30:50] = 0.5
    assert is_off(heat_HW, lesion_HW)
    lesion_HW[:6, :6] = True
    assert not is_off(heat_HW, lesion_HW)
