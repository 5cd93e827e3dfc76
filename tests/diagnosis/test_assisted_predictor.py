"""The served predictor with a fusion weight: what it changes, and what it must leave alone."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_bundle import pack_tiny, pack_whole

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.diagnosis.bundle_statement import bundle_version
from skindx.diagnosis.predictor import Predictor
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.bundle_changes import set_fusion
from skindx.models.combination import FusionSpec, box_crop
from skindx.models.conformal import Conformal
from skindx.models.detector import DetectorSpec
from skindx.models.ood.ood_check import features_of
from skindx.models.urgent_risk import RiskLevel, UrgentRiskRule

SURE, DOUBTFUL = Box(10, 10, 40, 30, score=0.9), Box(10, 10, 40, 30, score=0.1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return Predictor.load(pack_tiny(tmp_path_factory.mktemp("plain") / "bundle").path)


@pytest.fixture(scope="module")
def images() -> list[NDArray[np.uint8]]:
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (70, 90, 3), dtype=np.uint8) for _ in range(3)]


def _assisted(plain: Predictor, boxes: list[tuple[Box, ...]], weight: float) -> Predictor:
    detector = SimpleNamespace(
        detect=lambda images, confidence: boxes[: len(images)],
        spec=DetectorSpec(confidence=0.25),
    )
    return replace(plain, detector=detector, fusion=FusionSpec(weight=weight, margin=1.2))


def test_the_mean_of_two_views(plain: Predictor, images: list[NDArray[np.uint8]]) -> None:
    boxes = [(SURE,), (), (DOUBTFUL, SURE)]
    alone = plain.predict(images)
    crops = plain.predict([box_crop(images[n], SURE, 1.2) for n in (0, 2)])
    seen = _assisted(plain, boxes, 0.25).predict(images)
    for n, crop in ((0, crops[0]), (2, crops[1])):
        expected = 0.75 * alone[n].probabilities_C + 0.25 * crop.probabilities_C
        np.testing.assert_allclose(seen[n].probabilities_C, expected, atol=1e-6)
        members = 0.75 * alone[n].member_probabilities_MC + 0.25 * crop.member_probabilities_MC
        np.testing.assert_allclose(seen[n].member_probabilities_MC, members, atol=1e-6)
        assert seen[n].whole_C is not None
        np.testing.assert_array_equal(seen[n].whole_C, alone[n].probabilities_C)
        assert not np.allclose(seen[n].probabilities_C, alone[n].probabilities_C)
        assert seen[n].probabilities_C.sum() == pytest.approx(1)


@pytest.mark.parametrize("boxes", [(), (DOUBTFUL,)])
def test_without_a_sure_box_the_whole_image_answers_alone(
    plain: Predictor, images: list[NDArray[np.uint8]], boxes: tuple[Box, ...]
) -> None:
    alone = plain.predict(images)
    seen = _assisted(plain, [boxes] * 3, 0.5).predict(images, confidence=0.001)
    for one, other in zip(alone, seen, strict=True):
        assert one.probabilities_C.tobytes() == other.probabilities_C.tobytes()
        assert other.whole_C is None
        assert other.boxes == boxes


def test_weight_zero_is_the_plain_answer_to_the_bit(
    plain: Predictor, images: list[NDArray[np.uint8]]
) -> None:
    alone = plain.predict(images)
    seen = _assisted(plain, [(SURE,)] * 3, 0.0).predict(images)
    for one, other in zip(alone, seen, strict=True):
        assert one.probabilities_C.tobytes() == other.probabilities_C.tobytes()
        members = (one.member_probabilities_MC, other.member_probabilities_MC)
        assert members[0].tobytes() == members[1].tobytes()


def test_the_bundle_carries_the_weight(tmp_path: Path) -> None:
    bundle = pack_tiny(tmp_path / "bundle")
    before = bundle_version(bundle)
    fusion = FusionSpec(weight=0.4, margin=2.0)
    assert set_fusion(bundle.path, fusion, None).spec.fusion == fusion
    assert Predictor.load(bundle.path).fusion == fusion
    assert bundle_version(open_bundle(bundle.path)) != before
    assert "best box: 0.4" in (bundle.path / "MODEL_CARD.md").read_text()


def test_a_bundle_of_before_loads(tmp_path: Path) -> None:
    bundle = pack_tiny(tmp_path / "bundle")
    index = bundle.path / "bundle.json"
    raw = json.loads(index.read_text())
    del raw["fusion"]
    index.write_text(json.dumps(raw))
    assert Predictor.load(bundle.path).fusion is None


def test_one_look_gives_the_same_answers_and_what_they_were_made_from(
    plain: Predictor, images: list[NDArray[np.uint8]]
) -> None:
    fused = _assisted(plain, [(SURE,), (), (DOUBTFUL, SURE)], 0.25)
    said, output = fused.predict_with_features(images)
    for one, other in zip(fused.predict(images), said, strict=True):
        assert one.probabilities_C.tobytes() == other.probabilities_C.tobytes()
        assert one.boxes == other.boxes
        members = (one.member_probabilities_MC, other.member_probabilities_MC)
        assert members[0].tobytes() == members[1].tobytes()
    # Embeddings and maps are of the whole images: of the crops nobody asks.
    np.testing.assert_array_equal(
        output.embeddings_ND, plain.predict_with_features(images)[1].embeddings_ND
    )
    assert [len(map_) for map_ in output.maps] == [3, 3]


def test_sets_fitted_with_crops_promise_nothing_without_them(tmp_path: Path) -> None:
    """As on a machine without ultralytics: the bundle has a weight, the predictor no detector."""
    fused, whole = (
        Conformal(pictures=60, thresholds={"all": threshold}) for threshold in (0.3, 0.2)
    )
    bundle = pack_tiny(tmp_path / "bundle", conformal=whole)
    box_sees = SimpleNamespace(detect=None, spec=DetectorSpec())
    predictor = Predictor.load(bundle.path)
    assert (predictor.conformal, predictor.no_sets) == (whole, "")

    # A bundle of an older version kept the fused rule alone.
    set_fusion(bundle.path, FusionSpec(weight=0.4), fused)
    predictor = Predictor.load(bundle.path)
    assert predictor.conformal is None
    assert "so it does not hold without it" in predictor.no_sets
    assert replace(predictor, detector=box_sees).conformal == fused

    set_fusion(bundle.path, FusionSpec(weight=0.4), fused, whole)
    predictor = Predictor.load(bundle.path)
    assert (predictor.conformal, predictor.no_sets) == (whole, "")
    assert replace(predictor, detector=box_sees).conformal == fused
    # A crop that counts nothing changes no answer.
    set_fusion(bundle.path, FusionSpec(weight=0), whole)
    assert Predictor.load(bundle.path).conformal == whole


def test_a_risk_threshold_fitted_with_crops_is_not_used_without_them(tmp_path: Path) -> None:
    fused, whole = (
        UrgentRiskRule(
            urgent_columns=(3,),
            lesions={"all": 57},
            levels=(RiskLevel(miss_rate=0.05, thresholds={"all": threshold}),),
        )
        for threshold in (0.3, 0.2)
    )
    bundle = pack_tiny(tmp_path / "bundle", urgent_risk=whole)
    assert Predictor.load(bundle.path).urgent_risk == whole
    box_sees = SimpleNamespace(detect=None, spec=DetectorSpec())
    half = FusionSpec(weight=0.4)
    set_fusion(bundle.path, half, None, urgent_risk=fused, whole_urgent_risk=whole)
    predictor = Predictor.load(bundle.path)
    assert (predictor.urgent_risk, predictor.no_urgent_risk) == (whole, "")
    assert replace(predictor, detector=box_sees).urgent_risk == fused
    set_fusion(bundle.path, half, None, urgent_risk=fused)
    predictor = Predictor.load(bundle.path)
    assert predictor.urgent_risk is None
    assert "The next step follows the most urgent condition" in predictor.no_urgent_risk
    with pytest.raises(UserError, match="no threshold for any miss rate"):
        Predictor.load(bundle.path, miss_rate=0.05)


def test_the_operator_chooses_among_the_levels_of_the_bundle(tmp_path: Path) -> None:
    rule = UrgentRiskRule(
        urgent_columns=(3,),
        lesions={"all": 57},
        levels=tuple(
            RiskLevel(miss_rate=rate, thresholds={"all": 2 * rate}) for rate in (0.02, 0.05)
        ),
    )
    bundle = pack_tiny(tmp_path / "bundle", urgent_risk=rule)
    assert Predictor.load(bundle.path).miss_rate is None
    assert Predictor.load(bundle.path, miss_rate=0.02).miss_rate == 0.02
    with pytest.raises(
        UserError, match=r"miss rate of 0.1; choose one of its rates: --miss-rate 0.02, 0.05"
    ):
        Predictor.load(bundle.path, miss_rate=0.1)
    card = (bundle.path / "MODEL_CARD.md").read_text()
    assert (
        "urgent from a risk of 0.1000: expected miss rate at most 5% (confidence that this "
        "threshold keeps to it: 79%; with 95% confidence at most 8.1%)"
    ) in card
    old = pack_tiny(tmp_path / "old")
    assert "urgent risk: no threshold" in (old.path / "MODEL_CARD.md").read_text()
    with pytest.raises(UserError, match="no threshold for any miss rate"):
        Predictor.load(old.path, miss_rate=0.05)


@pytest.mark.parametrize("name", ["urgent_risk", "conformal"])
def test_a_rule_of_another_taxonomy_is_refused(tmp_path: Path, name: str) -> None:
    bundle = pack_tiny(tmp_path / "bundle")
    index = bundle.path / "bundle.json"
    raw = json.loads(index.read_text())
    raw["urgent_risk"] = {
        "urgent_columns": [3],
        "lesions": {"all": 57},
        "levels": [{"miss_rate": 0.05, "thresholds": {"all": 0.2}}],
    }
    raw["conformal"] = {"pictures": 60, "thresholds": {"all": 0.2}}
    raw[name]["urgent_columns"] = [99]
    index.write_text(json.dumps(raw))
    with pytest.raises(UserError, match=f"{name} refers to class 99"):
        open_bundle(bundle.path)


def test_the_parts_of_a_whole_bundle_are_offered_and_an_older_one_has_none(
    plain: Predictor, images: list[NDArray[np.uint8]], tmp_path: Path
) -> None:
    predictor = Predictor.load(pack_whole(tmp_path / "bundle").path)
    assert predictor.conformal is not None
    assert predictor.gallery is not None
    assert predictor.ood is not None
    _, output = predictor.predict_with_features(images)
    assert len(predictor.gallery.nearest(output.embeddings_ND[0], 3)) == 3
    (p_value, *_) = predictor.ood.p_values(features_of(predictor.ensemble, images, output))
    assert 0 < p_value <= 1
    assert (plain.gallery, plain.ood, plain.conformal) == (None, None, None)
    assert "had no calibration images" in plain.no_sets
