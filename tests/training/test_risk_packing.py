"""Thresholds of the urgent risk are fitted on calibration, as the bundle answers."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from skindx.data.loader.source import Files
from skindx.data.manifest import Record, read_manifest, write_manifest
from skindx.diagnosis.predictor import Predictor
from skindx.models.bundle.bundle import open_bundle
from skindx.models.bundle.bundle_changes import set_fusion
from skindx.models.bundle.model_card import missing_parts
from skindx.models.class_calibration import LossGain
from skindx.models.combination import FusionSpec
from skindx.models.conformal import fit_on_records
from skindx.models.ensemble import predict_records
from skindx.models.metadata_head import Facts, MetadataHead, MetadataSpec
from skindx.models.ood.stored_check import OodCollector
from skindx.models.urgent_risk import fit_risk_on_records
from skindx.training.ensembles import pack
from skindx.training.ensembles.ready_ensemble import fit_on_calibration

WRITTEN = Path(__file__).parents[1] / "fixtures/v0_1"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return a bundle with a detector and its dataset, whose training images calibrate."""
    shutil.copytree(WRITTEN, tmp_path / "written")
    dataset = tmp_path / "written/dataset"
    records = [
        replace(record, split="calibration") if record.split == "train" else record
        for record in read_manifest(dataset)
    ]
    write_manifest(dataset, records)
    return tmp_path / "written/whole/bundle", dataset


def calibrating(dataset: Path) -> list[Record]:
    return [record for record in read_manifest(dataset) if record.split == "calibration"]


def test_packing_fits_the_risk_on_calibration_images(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, dataset = folders
    predictor, records = Predictor.load(bundle), read_manifest(dataset)
    ensemble, taxonomy = predictor.ensemble, predictor.taxonomy
    *_, rules = fit_on_calibration(ensemble, dataset, records, taxonomy, OodCollector(ensemble, ()))
    rule = rules["urgent_risk"]
    assert rule is not None
    assert rules["soon_risk"] is None  # no class of this taxonomy is soon
    held = calibrating(dataset)
    melanoma_N = np.array([record.label == "Melanoma" for record in held])
    assert rule.lesions == {"all": len({r.group for r in held if r.label == "Melanoma"})}
    probabilities_NC, _ = predict_records(predictor.ensemble, dataset, held)
    risk_N = rule.risks(probabilities_NC)
    for level in rule.levels:
        assert (risk_N[melanoma_N] < level.thresholds["all"]).mean() < level.miss_rate
    assert "fitted on" in capsys.readouterr().out
    few = [record for record in records if record.split != "calibration"] + held[:10]
    *_, none = fit_on_calibration(ensemble, dataset, few, taxonomy, OodCollector(ensemble, ()))
    assert none == {"urgent_risk": None, "soon_risk": None}
    assert "threshold" not in capsys.readouterr().out  # it is said once, at the end of a training
    lacking = predictor.bundle.spec.model_copy(update={"urgent_risk": None})
    assert any(
        "no threshold of the urgent risk" in x for x in missing_parts(lacking, taxonomy.classes)
    )


@pytest.mark.parametrize("weight", [0.0, 0.4])
def test_the_risk_is_fitted_again_for_answers_with_crops(
    folders: tuple[Path, Path], weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, dataset = folders
    opened, held = open_bundle(bundle), calibrating(dataset)
    whole_NC, _ = predict_records(opened.ensemble(), dataset, held)
    whole = fit_risk_on_records(whole_NC, held, opened.taxonomy)
    set_fusion(bundle, FusionSpec(weight=0), opened.spec.conformal, urgent_risk=whole)
    monkeypatch.setattr(pack, "fit_weight", lambda *_: weight)
    fused = pack.fit_fusion(bundle, dataset, 1.5).spec
    assert fused.fusion is not None
    if fused.fusion.weight == 0:
        assert (fused.urgent_risk, fused.whole_urgent_risk) == (whole, None)
        return
    assert fused.whole_urgent_risk == whole
    predictor = Predictor.load(bundle)
    images = Files(dataset, held)
    said = predictor.predict([images.image(n) for n in range(len(held))])
    served_NC = np.stack([prediction.probabilities_C for prediction in said])
    again = fit_risk_on_records(served_NC, held, opened.taxonomy)
    assert fused.urgent_risk is not None
    assert again is not None
    for ours, theirs in zip(fused.urgent_risk.levels, again.levels, strict=True):
        assert ours.thresholds == pytest.approx(theirs.thresholds, abs=1e-6)


def with_facts(dataset: Path) -> list[Record]:
    """Say an age of every image and a place of every other one; write and return them."""
    records = [
        replace(record, age=float(20 + n % 60), site="back" if n % 2 else "")
        for n, record in enumerate(read_manifest(dataset))
    ]
    write_manifest(dataset, records)
    return records


def test_each_set_of_fields_has_rules_of_the_images_that_say_them(
    folders: tuple[Path, Path],
) -> None:
    bundle, dataset = folders
    records = with_facts(dataset)
    predictor, held = Predictor.load(bundle), calibrating(dataset)
    ensemble, taxonomy = predictor.ensemble, predictor.taxonomy
    column = (1.0, *(0.0,) * (len(taxonomy.classes) - 1))
    head = MetadataHead(
        columns=("age", "site back", "site face"), centre=(0.0,) * 3, weights=(column,) * 3
    )
    metadata = MetadataSpec(
        head=head, gain=LossGain(value=0.1, low=0.1, high=0.1, images=9, groups=9)
    )

    def fitted(some: list[Record]) -> MetadataSpec:
        parts = fit_on_calibration(
            ensemble, dataset, some, taxonomy, OodCollector(ensemble, ()), metadata=metadata
        )
        spec = parts[-1]["metadata"]
        assert isinstance(spec, MetadataSpec)
        return spec

    spec, (plain_NC, _) = fitted(records), predict_records(ensemble, dataset, held)
    assert spec.rules["age"].urgent_risk is not None
    for name, rules in spec.rules.items():
        said = [n for n, record in enumerate(held) if record.site or name == "age"]
        facts = [Facts.from_record(held[n]).only(name.split("+")) for n in said]
        served_NC = head.apply(plain_NC[said], facts)
        again = fit_on_records(served_NC, [held[n] for n in said], taxonomy)
        assert rules.conformal is not None
        assert rules.conformal.thresholds == pytest.approx(again.thresholds)
        assert rules.conformal.pictures == len(said)
    # Half of the lesions are too few for a threshold of the risk, so these fields are not served.
    assert spec.served(Facts(50, "", "back")) in {(), ("age", "site")}
    assert spec.served(Facts(50)) == ("age",)
    without = fitted([record for record in records if record.split != "calibration"])
    assert without.rules.keys() == {"age", "site", "age+site"}
    assert set(map(bool, dict(without.rules["age"]).values())) == {False}


def test_answers_with_crops_have_rules_with_fields_too(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, dataset = folders
    with_facts(dataset)
    opened = open_bundle(bundle)
    column = (1.0, *(0.0,) * (len(opened.taxonomy.classes) - 1))
    head = MetadataHead(columns=("age",), centre=(0.0,), weights=(column,))
    gain = LossGain(value=0.1, low=0.1, high=0.1, images=9, groups=9)
    conformal = opened.spec.conformal
    set_fusion(bundle, FusionSpec(weight=0), conformal, metadata=MetadataSpec(head=head, gain=gain))

    def looked(_: object, folder: Path, records: list[Record], *__: object) -> object:
        files = Files(folder, records)
        images = [files.image(n) for n in range(len(records))]
        yield 0, images, {n: image[:60, :60] for n, image in enumerate(images)}

    monkeypatch.setattr(pack, "_looked", looked)
    monkeypatch.setattr(pack, "fit_weight", lambda *_: 0.4)
    spec = pack.fit_fusion(bundle, dataset, 1.5).spec.metadata
    assert spec is not None
    rules = spec.rules["age"]
    assert rules.conformal is not None
    assert rules.whole_conformal is not None
    assert rules.conformal.pictures == rules.whole_conformal.pictures == len(calibrating(dataset))
    without = replace(Predictor.load(bundle), detector=None)
    served = without.metadata
    assert served is not None
    assert without._served_rules(served.served(Facts(50))).conformal == rules.whole_conformal
