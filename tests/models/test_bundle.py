import json
from pathlib import Path

import numpy as np
import pytest
import torch
from forged_bundle import forge
from tiny_bundle import measured

from skindx.core.atomic_files import sha256_file
from skindx.core.errors import UserError
from skindx.models.bundle.bundle import Bundle, DetectorParts, open_bundle, pack, write_index
from skindx.models.bundle.bundle_changes import (
    add_metrics,
    add_provenance,
    put_folder,
    set_fusion,
)
from skindx.models.bundle.bundle_index import EVALUATED, MemberSpec
from skindx.models.class_calibration import ClassCalibration
from skindx.models.classifier.classifier import ClassifierSettings, build_classifier
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.combination import Combination, FusionSpec
from skindx.models.detector import DetectorSpec
from skindx.taxonomy import SkinClass, Taxonomy

TAXONOMY = Taxonomy(
    name="two", title="Two", classes=tuple(SkinClass(key=key, name=key) for key in ("A", "B"))
)
SMALL = ClassifierSettings(model="test_resnet", preprocess=Preprocess(size=64))


def _pack(folder: Path, detector: DetectorParts | None = None) -> Bundle:
    torch.manual_seed(0)
    state = build_classifier(SMALL, 2).net.state_dict()
    member = MemberSpec(name="small", classifier=SMALL, temperature=1.5)
    return pack(
        folder / "bundle", "shapes", TAXONOMY, [(member, state)], temperature=0.9, detector=detector
    )


@pytest.fixture(scope="module")
def detector_parts() -> DetectorParts:
    from skindx.core.machine import go_offline

    go_offline()
    from ultralytics.nn.tasks import DetectionModel

    torch.manual_seed(0)
    net = DetectionModel("yolo11n.yaml", nc=1, verbose=False)
    return DetectorParts(DetectorSpec(size=96), {**net.yaml, "nc": 1}, net.state_dict())


def test_a_bundle_gives_back_what_was_packed(tmp_path: Path) -> None:
    bundle = _pack(tmp_path)
    torch.manual_seed(0)
    expected = build_classifier(SMALL, 2).eval()
    ensemble = open_bundle(bundle.path).ensemble()
    images = torch.randint(0, 256, (1, 64, 64, 3), dtype=torch.uint8)
    torch.testing.assert_close(ensemble.members[0].classifier(images), expected(images))
    assert (ensemble.temperature, ensemble.members[0].temperature) == (0.9, 1.5)
    assert bundle.taxonomy == TAXONOMY
    assert bundle.detector() is None
    assert "not clinically reviewed" in (bundle.path / "MODEL_CARD.md").read_text()


def test_a_calibration_by_class_is_served_and_a_damaged_one_refused(tmp_path: Path) -> None:
    bundle = _pack(tmp_path)
    assert "class_calibration" not in json.loads((bundle.path / "bundle.json").read_text())
    before = bundle.ensemble()
    by_class = ClassCalibration(slope=1.1, biases=(0.4, -0.4), few=(1,))
    write_index(bundle.path, bundle.spec.model_copy(update={"class_calibration": by_class}))
    ensemble = open_bundle(bundle.path).ensemble()
    image = np.random.default_rng(0).integers(0, 256, (70, 80, 3), dtype=np.uint8)
    expected_NC = by_class.apply(np.log(before.probabilities([image])[0]))
    np.testing.assert_allclose(ensemble.probabilities([image])[0], expected_NC)

    index = json.loads((bundle.path / "bundle.json").read_text())
    for damage, words in (
        ({"biases": [0.1, 0.2, -0.3]}, "has a calibration for 3 classes, but its taxo"),
        ({"slope": 0}, "class_calibration.slope"),
        ({"slope": "NaN"}, "class_calibration.slope"),
        ({"biases": "no"}, "class_calibration.biases"),
        ({"few": [7]}, "class_calibration"),
    ):
        index["class_calibration"] = {"slope": 1.0, "biases": [0.1, -0.1], "few": []} | damage
        (bundle.path / "bundle.json").write_text(json.dumps(index))
        with pytest.raises(UserError, match=words) as raised:
            open_bundle(bundle.path)
        assert "\n" not in str(raised.value)


def test_no_pickle_is_in_a_bundle(tmp_path: Path, detector_parts: DetectorParts) -> None:
    bundle = _pack(tmp_path, detector_parts)
    suffixes = {file.suffix for file in bundle.path.rglob("*") if file.is_file()}
    assert suffixes == {".json", ".yaml", ".md", ".safetensors"}


def test_the_detector_comes_back_the_same(tmp_path: Path, detector_parts: DetectorParts) -> None:
    detector = _pack(tmp_path, detector_parts).detector()
    assert detector is not None
    for name, tensor in detector.net.state_dict().items():
        torch.testing.assert_close(tensor, detector_parts.state[name].to(tensor.dtype))
    image = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    for box in detector.detect([image], confidence=0.0)[0]:
        assert 0 <= box.x1 < box.x2 <= 90
        assert 0 <= box.y1 < box.y2 <= 60


@pytest.mark.parametrize(
    "name", ["taxonomy.yaml", "members/small/model.safetensors", "MODEL_CARD.md"]
)
def test_missing_and_altered_files_are_named(tmp_path: Path, name: str) -> None:
    bundle = _pack(tmp_path)
    file = bundle.path / name
    kept = file.read_bytes()
    file.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(UserError, match=f"{name} was altered"):
        open_bundle(bundle.path)
    file.unlink()
    with pytest.raises(UserError, match=f"{name} is missing"):
        open_bundle(bundle.path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"files": {}}, "does not list"),
        ({"members": []}, "'members'"),
        (
            {"format": 2},
            "has format 2, but this version of skindx reads format 1; install the newest skindx",
        ),
        ({"wings": 2}, "there is no setting 'wings'"),
    ],
)
def test_a_wrong_index_is_one_sentence(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    bundle = _pack(tmp_path)
    index = bundle.path / "bundle.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), **change}))
    with pytest.raises(UserError, match=said) as caught:
        open_bundle(bundle.path)
    assert "\n" not in str(caught.value)


def test_an_index_cannot_reach_outside(tmp_path: Path) -> None:
    bundle = _pack(tmp_path)
    (tmp_path / "secret").write_text("x")
    index = bundle.path / "bundle.json"
    raw = json.loads(index.read_text())
    raw["files"]["../secret"] = "0" * 64
    index.write_text(json.dumps(raw))
    with pytest.raises(UserError, match="points outside the bundle"):
        open_bundle(bundle.path)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "does not exist"), ("", "is not a bundle"), ("{", "not valid JSON")],
)
def test_what_is_no_bundle(tmp_path: Path, content: str | None, said: str) -> None:
    folder = tmp_path / "bundle"
    if content is not None:
        folder.mkdir()
    if content:
        (folder / "bundle.json").write_text(content)
    with pytest.raises(UserError, match=said):
        open_bundle(folder)


def test_metrics_join_the_bundle(tmp_path: Path) -> None:
    bundle = _pack(tmp_path)
    assert bundle.metrics() is None
    evaluations = set()
    for top1 in (0.5, 0.75):
        add_metrics(bundle.path, measured(top1))
        evaluated = open_bundle(bundle.path)
        assert evaluated.metrics() == measured(top1)
        assert (evaluated.digest, evaluated.spec) == (bundle.digest, bundle.spec)
        assert evaluated.evaluation == sha256_file(bundle.path / EVALUATED)
        evaluations.add(evaluated.evaluation)
        card = (bundle.path / "MODEL_CARD.md").read_text()
        assert f"| ensemble | {top1:.3f} [0.250, –]" in card
    assert "\n## What could not be fitted\n\n- no conformal sets: " in card
    assert "\n- no threshold of the urgent risk: none of its classes is urgent" in card
    assert "\n- no check for photos unlike the training images" in card
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    assert len(evaluations) == 2
    for digest in (evaluated.digest, evaluated.evaluation[:16]):
        assert open_bundle(bundle.path, digest) == evaluated


def test_an_evaluation_that_does_not_belong_to_the_bundle_is_refused(tmp_path: Path) -> None:
    bundle = _pack(tmp_path)
    foreign = measured(0.5) | {"origin": {"bundle_digest": "ab" * 32}}
    with pytest.raises(UserError, match=f"belong to a bundle with the digest {'ab' * 32}"):
        add_metrics(bundle.path, foreign)
    assert open_bundle(bundle.path).metrics() is None
    add_metrics(bundle.path, measured(0.5) | {"origin": {"bundle_digest": bundle.digest}})
    card = (bundle.path / "MODEL_CARD.md").read_text()
    assert f"Measured on the bundle with the digest {bundle.digest}." in card
    for name, change, said in (
        ("metrics.json", lambda text: text.replace("0.25", "0.35"), "metrics.json was altered"),
        ("MODEL_CARD.md", lambda text: f"{text}\n", "MODEL_CARD.md was altered"),
        (EVALUATED, lambda text: text.replace(bundle.digest, "ab" * 32), "belongs to bundle abab"),
        (EVALUATED, lambda text: text.replace("format", "formats"), "formats"),
        (EVALUATED, lambda text: "{", "not valid JSON"),
        (EVALUATED, None, "does not list|was altered"),
    ):
        file = bundle.path / name
        whole = file.read_text()
        file.write_text(change(whole)) if change else file.unlink()
        with pytest.raises(UserError, match=said) as caught:
            open_bundle(bundle.path)
        assert "\n" not in str(caught.value)
        file.write_text(whole)
    assert open_bundle(bundle.path).metrics()


def test_what_changes_no_answer_keeps_the_evaluation(tmp_path: Path) -> None:
    bundle = _pack(tmp_path)
    evaluated = add_metrics(bundle.path, measured(0.5))
    exported = tmp_path / "export"
    exported.mkdir()
    (exported / "small.onnx").write_bytes(b"x")
    put_folder(bundle.path, "exports/onnx", exported)
    after = open_bundle(bundle.path)
    assert after.metrics() == measured(0.5)
    assert after.digest != evaluated.digest
    assert after.evaluation != evaluated.evaluation
    fused = set_fusion(bundle.path, FusionSpec(weight=0.5), None)
    assert (fused.metrics(), fused.evaluation) == (None, "")
    assert "Not yet: run `skindx evaluate`." in (bundle.path / "MODEL_CARD.md").read_text()


def test_the_index_of_an_older_bundle_lists_its_figures(tmp_path: Path) -> None:
    """It opens as it was; a new evaluation leaves its digest, a change takes them out."""
    bundle = _pack(tmp_path).path
    forge(bundle, "metrics.json", json.dumps(measured(0.5)).encode())
    older = open_bundle(bundle)
    assert (older.metrics(), older.evaluation) == (measured(0.5), "")
    again = add_metrics(bundle, measured(0.75))
    assert (again.digest, again.metrics()) == (older.digest, measured(0.75))
    assert again.evaluation
    add_provenance(bundle, {"fact": 1})
    changed = open_bundle(bundle)
    assert "metrics.json" not in changed.spec.files
    assert changed.metrics() == measured(0.75)


def test_a_bundle_without_views_and_combination_loads_as_before(tmp_path: Path) -> None:
    bundle = _pack(tmp_path)
    index = bundle.path / "bundle.json"
    raw = json.loads(index.read_text())
    del raw["combination"]
    for member in raw["members"]:
        del member["views"]
    index.write_text(json.dumps(raw))
    ensemble = open_bundle(bundle.path).ensemble()
    assert ensemble.combination == Combination()
    assert ensemble.members[0].views == 1


def test_combination_and_views_come_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = build_classifier(SMALL, 2).net.state_dict()
    members = [(MemberSpec(name=name, classifier=SMALL, views=4), state) for name in "ab"]
    combination = Combination(rule="logit", weights=(0.25, 0.75))
    bundle = pack(tmp_path / "bundle", "two", TAXONOMY, members, combination=combination)
    ensemble = open_bundle(bundle.path).ensemble()
    assert ensemble.combination == combination
    assert [member.views for member in ensemble.members] == [4, 4]
    card = (bundle.path / "MODEL_CARD.md").read_text()
    assert "- combined by: mean of logits, weights 0.25, 0.75\n" in card
    index = bundle.path / "bundle.json"
    raw = json.loads(index.read_text())
    raw["combination"]["weights"] = [1.0]
    index.write_text(json.dumps(raw))
    with pytest.raises(UserError, match="1 weights for 2 members"):
        open_bundle(bundle.path)
