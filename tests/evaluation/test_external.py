"""A dataset with other classes is joined through the taxonomies."""

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from evaluation_fakes import (
    CLASSES,
    TAXONOMY,
    FakePredictor,
    decode,
    records_of,
    simulate,
    write_dataset,
)

from skindx.core.atomic_files import sha256_file
from skindx.core.errors import UserError
from skindx.evaluation.evaluate import evaluate_served
from skindx.evaluation.score import join_taxonomies
from skindx.taxonomy import SkinClass, Taxonomy, load_taxonomy


def taxonomy(*classes: SkinClass) -> Taxonomy:
    return Taxonomy(name="t", title="T", classes=classes)


OURS = taxonomy(
    SkinClass(key="Nevus", name="Nevus", icd10="D22.9", synonyms=("mole",)),
    SkinClass(key="Melanoma", name="Melanoma", icd10="C43.9", synonyms=("mel",)),
    SkinClass(key="SK", name="Seborrheic keratosis", icd10="L82.1"),
    SkinClass(key="BKL", name="Benign keratosis", icd10="L82.1"),
    SkinClass(key="Wart", name="Wart", icd10="B07.9"),
)
THEIRS = taxonomy(
    SkinClass(key="Nevus", name="Anything"),
    SkinClass(key="mm", name="Malignant melanoma", synonyms=("mel",)),
    SkinClass(key="naevus", name="Naevi", synonyms=("Wart",)),
    SkinClass(key="verruca", name="Verruca", icd10="B07.9"),
    SkinClass(key="keratosis", name="Keratosis", icd10="L82.1"),
    SkinClass(key="rosacea", name="Rosacea", icd10="L71.9"),
)


def test_classes_match_by_key_then_name_then_a_code_of_their_own() -> None:
    labels = ["Nevus", "mm", "mm", "naevus", "verruca", "keratosis", "rosacea", "rosacea"]
    known, external = join_taxonomies(records_of(labels), THEIRS, OURS, "b")
    assert external is not None
    assert {match.label: (match.key, match.how) for match in external.matches} == {
        "Nevus": ("Nevus", "key"),
        "mm": ("Melanoma", "name"),
        "naevus": ("Wart", "name"),  # our name is a synonym of theirs
        "verruca": ("Wart", "code"),
        "keratosis": ("", "none"),  # two of ours bear the code: nobody knows which it means
        "rosacea": ("", "none"),
    }
    assert Counter(record.label for record in known) == {"Nevus": 1, "Melanoma": 2, "Wart": 2}
    assert external.left_out == 3
    assert external.absent == ("Seborrheic keratosis", "Benign keratosis")
    assert {match.label: match.pictures for match in external.matches}["rosacea"] == 2


def test_a_code_that_several_of_their_classes_bear_matches_nothing() -> None:
    theirs = taxonomy(
        SkinClass(key="a", name="Plantar verruca", icd10="B07.9"),
        SkinClass(key="b", name="Flat verruca", icd10="B07.9"),
        SkinClass(key="Nevus", name="Nevus"),
    )
    known, external = join_taxonomies(records_of(["a", "b", "Nevus"]), theirs, OURS, "b")
    assert [record.label for record in known] == ["Nevus"]
    assert external is not None
    assert external.left_out == 2


def test_the_bundles_own_classes_are_no_external_validation() -> None:
    records = records_of(["Nevus", "Melanoma"])
    assert join_taxonomies(records, OURS, OURS, "b") == (records, None)
    assert join_taxonomies(records, None, OURS, "b") == (records, None)
    fewer = taxonomy(*OURS.classes[:2])
    known, external = join_taxonomies(records, fewer, OURS, "b")
    assert known == records
    assert external is not None
    assert external.left_out == 0


def test_without_a_taxonomy_labels_speak_for_themselves() -> None:
    known, external = join_taxonomies(records_of(["MEL", "mole", "acne"]), None, OURS, "b")
    assert [record.label for record in known] == ["Melanoma", "Nevus"]
    assert external is not None
    assert external.left_out == 1
    with pytest.raises(
        UserError, match=r"classes of the dataset \(acne\) .* own 5.*some of the bundle's"
    ):
        join_taxonomies(records_of(["acne"]), None, OURS, "b")


def test_packaged_taxonomies_meet() -> None:
    isic9, skin10 = load_taxonomy("isic9"), load_taxonomy("skin10")
    _, external = join_taxonomies(records_of(list(skin10.keys)), skin10, isic9, "b")
    assert external is not None
    matched = {match.label: match.key for match in external.matches if match.key}
    assert matched["Basal_Cell_Carcinoma"] == "Basal_Cell_Carcinoma"
    assert matched["Seborrheic_Keratosis"] == "Seborrheic_Keratosis"
    assert matched["Actinic_solar_Damage_Actinic_Keratosis"] == "Actinic_Keratosis"
    assert "Rosacea" not in matched


def test_an_external_set_is_scored_as_the_bundle_answers(tmp_path: Path) -> None:
    labels, table = simulate(12)
    theirs = {"nevus": "mole", "melanoma": "Melanoma", "scc": "lupus"}
    records = records_of([theirs[label] for label in labels], split="train")
    folder = write_dataset(tmp_path / "other", records)
    taxonomy(
        SkinClass(key="mole", name="Compound nevus"),
        SkinClass(key="Melanoma", name="Melanoma"),
        SkinClass(key="lupus", name="Lupus"),
    ).save(folder / "taxonomy.yaml")
    out = tmp_path / "out"
    found = evaluate_served(
        *(FakePredictor(table), records, decode, out),
        bundle="b", dataset=folder, split="all", draws=20,
    )  # fmt: skip
    left_out = labels.count("scc")
    assert left_out
    assert found.external is not None
    assert (found.pictures, found.external.left_out) == (12 - left_out, left_out)
    # Not renormalised: an image said to be of a class that is absent here is wrong.
    right = [
        CLASSES[int(each.probabilities_C.argmax())].key == label
        for label, each in zip(labels, table, strict=True)
        if label != "scc"
    ]
    assert found.ensemble.top1.value == pytest.approx(sum(right) / len(right))
    assert [condition.n for condition in found.classes][2:] == [0, 0]
    rows = pq.read_table(out / "predictions.parquet").to_pylist()
    assert {row["label"] for row in rows} == {"nevus", "melanoma"}
    assert {row["split"] for row in rows} == {"train"}
    page = (out / "report.html").read_text()
    assert f"{left_out} are left out" in page
    assert "over all its classes" in page
    assert json.loads((out / "metrics.json").read_text())["external"]["left_out"] == left_out


def test_all_of_what_was_trained_on_is_refused(tmp_path: Path) -> None:
    labels, table = simulate(4)
    records = records_of(labels)
    folder = write_dataset(tmp_path / "data", records)
    predictor = FakePredictor(table, trained_on=sha256_file(folder / "manifest.parquet"))
    arguments = (predictor, records, decode, tmp_path / "out")
    with pytest.raises(UserError, match=r"b was trained on .*data"):
        evaluate_served(*arguments, bundle="b", dataset=folder, split="all")
    assert predictor.batches == []
    TAXONOMY.save(folder / "taxonomy.yaml")
    found = evaluate_served(*arguments, bundle="b", dataset=folder, draws=10)
    assert found.external is None
