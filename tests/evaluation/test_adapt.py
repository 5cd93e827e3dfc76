"""A bundle fitted to local images: what is fitted, what is kept, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forged_bundle import change_index
from hypothesis import given
from hypothesis import strategies as st
from paint_images import encode, paint
from plain_measures import expected_calibration_error
from small_dataset import SmallDataset
from tiny_bundle import USE, pack_tiny, pack_whole

from skindx.core.errors import UserError
from skindx.data.manifest import Record
from skindx.data.origin import ImageOrigin
from skindx.diagnosis.bundle_statement import source_of
from skindx.diagnosis.predictor import Predictor
from skindx.evaluation import adapt as adapting
from skindx.evaluation.adapt import adapt, cross_fitted, look, rules_of
from skindx.imaging.decode import decode
from skindx.models.adaptation import FOLDS, FittedRules, LocalFit, LocalImages, folds
from skindx.models.bundle.bundle import mix_of, open_bundle, write_index
from skindx.models.bundle.bundle_changes import add_metrics, add_provenance, would_forget
from skindx.models.bundle.bundle_index import CALIBRATION_CLASSES
from skindx.models.class_calibration import ClassCalibration
from skindx.models.combination import fit_temperature, shifted
from skindx.models.conformal import fit_conformal
from skindx.models.urgent_risk import fit_urgent_risk
from skindx.taxonomy import SkinClass, Taxonomy

CLASSES = Taxonomy(
    name="t",
    title="T",
    classes=(
        SkinClass(key="nevus", name="Nevus", urgency="routine"),
        SkinClass(key="mel", name="Melanoma", urgency="urgent"),
        SkinClass(key="bcc", name="Basal cell carcinoma", urgency="soon"),
    ),
)
HOME_C, AWAY_C = np.array([0.8, 0.1, 0.1]), np.array([0.3, 0.5, 0.2])


def painted(n: int, mix_C: np.ndarray, sharpness: float, seed: int) -> LocalImages:
    """Return images whose answers hold for HOME_C and are `sharpness` times as sure as right."""
    random = np.random.default_rng(seed)
    truth_N = random.choice(3, size=n, p=mix_C)
    scores_NC = 2 * (2 * np.eye(3)[truth_N] + random.normal(size=(n, 3))) + np.log(HOME_C)
    log_NC = np.log(shifted(sharpness * scores_NC, np.zeros(3)))
    records = tuple(
        Record(f"{i}.jpg", f"{seed}{i:063x}", "0", 9, 9, CLASSES.keys[c], f"g{i // 2}", "test")
        for i, c in enumerate(truth_N)
    )
    return LocalImages(records, truth_N, log_NC, ood_NK=random.normal(size=(n, 1)))


def home(n: int = 600) -> FittedRules:
    """Return rules fitted at home, where answers are calibrated."""
    images = painted(n, HOME_C, 1.0, 0)
    p_NC, truth_N = np.exp(images.whole_NC), images.truth_N
    sets = fit_conformal(p_NC, truth_N, urgent_C=np.array([False, True, False]))
    risk = fit_urgent_risk(p_NC, truth_N, urgent_C=np.array([False, True, False]))
    return FittedRules(1.0, np.zeros(3), HOME_C, conformal=sets, risks={"urgent_risk": risk})


def test_the_shift_of_a_mix_is_bayes_rule() -> None:
    p_NC = np.array([[0.7, 0.2, 0.1]])
    weights_C = AWAY_C / HOME_C
    expected_C = p_NC[0] * weights_C / (p_NC[0] * weights_C).sum()
    np.testing.assert_allclose(shifted(np.log(p_NC), np.log(weights_C))[0], expected_C)


def test_a_temperature_is_fitted_beside_the_mix() -> None:
    away = painted(4000, AWAY_C, 2.5, 1)
    shift_C = np.log(AWAY_C / HOME_C)
    assert fit_temperature(away.whole_NC, away.truth_N, shift_C) == pytest.approx(2.5, rel=0.1)


def test_a_hundred_local_images_calibrate_answers_that_were_too_sure() -> None:
    away, parent = painted(1100, AWAY_C, 2.5, 1), home()
    local, rest = away.select(np.arange(1100) < 100), away.select(np.arange(1100) >= 100)
    fit = LocalFit(CLASSES, parent, HOME_C)
    rules = fit.fit(local)
    assert rules.mix_C is not None
    assert np.abs(rules.mix_C - AWAY_C).max() < 0.12
    before, after = (
        expected_calibration_error(each.probabilities(rest), rest.truth_N)
        for each in (parent, rules)
    )
    assert after <= 0.08 < before
    covered_N = rules.conformal.sets(rules.probabilities(rest))[np.arange(1000), rest.truth_N]  # type: ignore[union-attr]
    assert covered_N.mean() > 0.85
    risk = rules.risks["urgent_risk"]
    assert risk is not None
    assert risk.lesions["all"] < 60  # local ones, no longer those of home
    assert [level.miss_rate for level in risk.levels] == [0.05, 0.1]
    assert any("0.02" in note for note in rules.notes)
    # By figures: nothing is judged in sample, and a check that knows the local images passes them.
    changes = {change.key: change for change in cross_fitted(fit, local, None, draws=20)}
    assert changes["calibration_error"].external.value < changes["calibration_error"].internal.value
    assert changes["auroc"].external.value == pytest.approx(
        changes["auroc"].internal.value, abs=0.05
    )


def test_the_mix_is_the_local_lesions_and_one_prior_image_a_class() -> None:
    away = painted(10, AWAY_C, 2.0, 1)
    lesions = {(record.group, record.label) for record in away.records}
    counts_C = np.array([sum(label == key for _, label in lesions) for key in CLASSES.keys])
    expected_C = (counts_C + 3 * HOME_C) / (len(lesions) + 3)
    rules = LocalFit(CLASSES, home(60), HOME_C).fit(away)
    np.testing.assert_allclose(rules.mix_C, expected_C)
    np.testing.assert_allclose(rules.log_shifts_C, np.log(expected_C / HOME_C))


def test_too_few_urgent_lesions_keep_the_cautious_threshold() -> None:
    parent = home()
    away = painted(40, np.array([0.7, 0.2, 0.1]), 2.0, 5)
    rules = LocalFit(CLASSES, parent, HOME_C).fit(away)
    old, new = parent.risks["urgent_risk"], rules.risks["urgent_risk"]
    assert old is not None
    assert new is not None
    assert new.lesions["all"] == old.lesions["all"]
    called_N = old.risks(parent.probabilities(away)) >= old.level().thresholds["all"]
    # Cross-fitted answers set it; those of the final fit differ by a fold.
    now_N = new.risks(rules.probabilities(away)) >= new.level().thresholds["all"] - 0.02
    assert (now_N | ~called_N).all()
    assert now_N[away.truth_N == 1].all()
    assert any("too few for one of their own (it takes 19)" in note for note in rules.notes)


def test_a_mix_that_was_picked_is_kept() -> None:
    rules = LocalFit(CLASSES, home(), HOME_C, keep_mix=True).fit(painted(60, AWAY_C, 2.0, 1))
    np.testing.assert_array_equal(rules.log_shifts_C, 0)
    assert rules.temperature > 1
    assert "kept, as asked" in rules.notes[0]


@given(st.lists(st.integers(0, 12), min_size=20, max_size=40), st.integers(0, 5))
def test_folds_never_divide_a_group(groups: list[int], seed: int) -> None:
    images = painted(len(groups), HOME_C, 1.0, seed)
    images = replace(
        images,
        records=tuple(
            replace(record, group=str(group))
            for record, group in zip(images.records, groups, strict=True)
        ),
    )
    fold_N = folds(images)
    by_group: dict[int, set[int]] = {}
    for group, fold in zip(groups, fold_N.tolist(), strict=True):
        by_group.setdefault(group, set()).add(fold)
    assert all(len(folds_of) == 1 for folds_of in by_group.values())
    assert len(set(fold_N.tolist())) == min(FOLDS, len(by_group))


def local_images(folder: Path, count: int, first: int = 500) -> Path:
    """Write a dataset of painted images with the labels of isic9."""
    small, keys = SmallDataset(folder), ("Melanoma", "Nevus", "Basal_Cell_Carcinoma")
    for n in range(count):
        small.add(encode(paint(first + n), quality=90), label=keys[n % 3], split="test")
    small.write()
    (folder / "taxonomy.yaml").unlink()  # its labels are the bundle's keys
    return folder


def test_an_adapted_bundle_is_another_bundle_that_serves(tmp_path: Path) -> None:
    change_index(pack_whole(tmp_path / "parent").path, ("use",), USE.model_dump(mode="json"))
    parent = open_bundle(tmp_path / "parent")
    keys = parent.taxonomy.keys
    add_provenance(parent.path, {CALIBRATION_CLASSES: dict.fromkeys(keys, 5)})
    digest = add_metrics(parent.path, json.loads(json.dumps(_figures()))).digest
    local = local_images(tmp_path / "local", 24)
    found = adapt(parent.path, local, tmp_path / "new", draws=20)
    assert open_bundle(parent.path).digest == digest != found.bundle.digest
    adaptation = found.bundle.spec.adapted
    assert adaptation is not None
    assert (adaptation.parent, adaptation.images) == (digest, 24)
    assert found.bundle.metrics() is None
    assert found.bundle.spec.use == USE
    card = (found.bundle.path / "MODEL_CARD.md").read_text()
    assert "Adapted to local images" in card
    assert "- labels confirmed by: not known 24" in card
    assert digest in card
    mix = mix_of(found.bundle)
    assert mix is not None
    assert mix["Melanoma"] > 2 * mix["Dermatofibroma"] > 0
    refused = next(change for change in found.changes if change.key == "refused")
    assert refused.external.value <= 0.1  # 5 % expected; 24 images

    words = source_of(found.bundle, "eager").adapted
    assert words.endswith(
        "groups of local. Its temperature, mix of diseases and thresholds are theirs."
    )

    predictor = Predictor.load(found.bundle.path)
    photo = decode(next(local.rglob("*.jpg")).read_bytes())
    (answer,) = predictor.predict([photo])
    assert answer.probabilities_C.sum() == pytest.approx(1)
    # Served answers are those that the rules were fitted to.
    records = [record for record in _records(local) if record.sha256]
    images, _ = look(parent, local, records)
    rules = rules_of(found.bundle)
    served = predictor.predict([decode((local / r.path).read_bytes()) for r in records])
    np.testing.assert_allclose(
        rules.probabilities(images),
        np.stack([each.probabilities_C for each in served]),
        atol=1e-6,
    )
    # A local image can be taken down: the check is fitted again on the others.
    forgotten = would_forget(found.bundle.path, [records[0].sha256])
    assert (forgotten.ood, forgotten.refitted) == (1, True)
    more = local_images(tmp_path / "more", 36, first=600)
    again = adapt(found.bundle.path, more, tmp_path / "third", draws=20)
    assert again.adaptation.earlier == (digest,)
    assert again.adaptation.parent == found.bundle.digest
    assert again.adaptation.first_mix == adaptation.first_mix


def _records(local: Path) -> list[Record]:
    from skindx.data.manifest import read_manifest

    return read_manifest(local)


def _figures() -> dict[str, object]:
    from tiny_bundle import measured

    return measured(0.5)


def test_a_calibration_by_class_stays_below_what_is_adapted(tmp_path: Path) -> None:
    parent = pack_tiny(tmp_path / "parent")
    keys = parent.taxonomy.keys
    biases = np.linspace(-1.2, 1.2, len(keys))
    by_class = ClassCalibration(slope=0.7, biases=tuple(biases.tolist()))
    write_index(parent.path, parent.spec.model_copy(update={"class_calibration": by_class}))
    add_provenance(parent.path, {CALIBRATION_CLASSES: dict.fromkeys(keys, 5)})
    parent, local = open_bundle(parent.path), local_images(tmp_path / "local", 24)
    found = adapt(parent.path, local, tmp_path / "new", draws=20).bundle
    assert found.spec.class_calibration == by_class
    assert found.spec.adapted is not None
    for bundle in (parent, found):  # what thresholds are fitted to is what is served
        images, _ = look(bundle, local, _records(local))
        photos = [decode((local / record.path).read_bytes()) for record in _records(local)]
        served_NC, _ = bundle.ensemble().probabilities(photos)
        np.testing.assert_allclose(rules_of(bundle).probabilities(images), served_NC, atol=1e-6)
    shifts_C = np.log([*found.spec.adapted.mix.values()]) - np.log(1 / len(keys))
    np.testing.assert_allclose(found.spec.adapted.log_shifts, shifts_C)
    # The temperature is fitted beside biases and mix.
    scores_NC, truth_N = look(parent, local, _records(local))[0].whole_NC, images.truth_N
    expected = fit_temperature(scores_NC, truth_N, shifts_C + biases)
    assert found.spec.temperature == pytest.approx(expected, rel=1e-4)


def test_what_cannot_be_adapted_is_one_sentence(tmp_path: Path) -> None:
    local = local_images(tmp_path / "local", 24)
    few = local_images(tmp_path / "few", 3, first=700)
    bundle = pack_tiny(tmp_path / "bundle", seen=[
        replace(record, split="train") for record in _records(local)
    ])  # fmt: skip
    with pytest.raises(UserError, match="all 24 images"):
        adapt(bundle.path, local, tmp_path / "new")
    with pytest.raises(UserError, match=r"has 3 images in 3 groups.*at least 19 groups"):
        adapt(bundle.path, few, tmp_path / "new")
    with pytest.raises(UserError, match="is the bundle itself"):
        adapt(bundle.path, few, bundle.path)
    assert not (tmp_path / "new").exists()


def test_images_of_the_other_kind_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = local_images(tmp_path / "local", 24)
    bundle = pack_tiny(tmp_path / "bundle")
    kinds = {"theirs": "clinical"}
    monkeypatch.setattr(
        adapting, "origin_of", lambda *_: ImageOrigin.model_validate({"modality": kinds["theirs"]})
    )
    monkeypatch.setattr(type(bundle), "images", ImageOrigin(modality="dermoscopic"))
    with pytest.raises(UserError, match="was trained on dermoscopic images"):
        adapt(bundle.path, local, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    for kinds["theirs"] in ("dermoscopic", "mixed", ""):
        adapting._check_kind(bundle, local, [])
