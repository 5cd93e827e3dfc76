import csv
import warnings
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.core.errors import UserError
from skindx.taxonomy import (
    SkinClass,
    Taxonomy,
    Urgency,
    advice_for,
    load_taxonomy,
    normalise,
    taxonomy_names,
)

SKIN100 = load_taxonomy("skin100")
PACKAGED = {name: load_taxonomy(name) for name in taxonomy_names()}

# Fitzpatrick17k's labels that mean a Skin-100 class; skin100.yaml says why the others do not.
FITZPATRICK = {
    "acne": "Acne_Vulgaris",
    "acne vulgaris": "Acne_Vulgaris",
    "actinic keratosis": "Actinic_solar_Damage_Actinic_Keratosis",
    "allergic contact dermatitis": "Allergic_Contact_Dermatitis",
    "basal cell carcinoma": "Basal_Cell_Carcinoma",
    "basal cell carcinoma morpheiform": "Basal_Cell_Carcinoma",
    "congenital nevus": "Congenital_Nevus",
    "dermatofibroma": "Dermatofibroma",
    "drug eruption": "Drug_Eruption",
    "dyshidrotic eczema": "Dyshidrotic_Eczema",
    "eczema": "Atopic_Dermatitis_Eczema",
    "epidermal nevus": "Epidermal_Nevus",
    "erythema multiforme": "Erythema_Multiforme",
    "factitial dermatitis": "Factitial_Dermatitis",
    "fixed eruptions": "Fixed_Drug_Eruption",
    "granuloma annulare": "Granuloma_Annulare",
    "granuloma pyogenic": "Pyogenic_Granuloma",
    "halo nevus": "Halo_Nevus",
    "ichthyosis vulgaris": "Ichthyosis_Vulgaris",
    "keratosis pilaris": "Keratosis_Pilaris",
    "lichen planus": "Lichen_Planus",
    "livedo reticularis": "Livedo_Reticularis",
    "lupus erythematosus": "Lupus_Erythematosus",
    "lupus subacute": "Lupus_Erythematosus",
    "malignant melanoma": "Malignant_Melanoma",
    "melanoma": "Melanoma",
    "milia": "Milia",
    "mycosis fungoides": "Mycosis_Fungoides",
    "neurotic excoriations": "Factitial_Dermatitis",
    "nevocytic nevus": "Melanocytic_Nevi_And_Melanotic_Macules",
    "nevus sebaceous of jadassohn": "Nevus_Sebaceus",
    "perioral dermatitis": "Perioral_Dermatitis",
    "pityriasis rosea": "Pityriasis_Rosea",
    "psoriasis": "Psoriasis",
    "pustular psoriasis": "Psoriasis_Pustular",
    "pyogenic granuloma": "Pyogenic_Granuloma",
    "rhinophyma": "Rhinophyma",
    "rosacea": "Rosacea",
    "scabies": "Scabies",
    "scleroderma": "Sclerodermas",
    "seborrheic dermatitis": "Seborrheic_Dermatitis",
    "seborrheic keratosis": "Seborrheic_Keratosis",
    "solid cystic basal cell carcinoma": "Basal_Cell_Carcinoma",
    "squamous cell carcinoma": "Squamous_Cell_Carcinoma_SCC",
    "stasis edema": "Stasis_Edema",
    "sun damaged skin": "Actinic_solar_Damage",
    "superficial spreading melanoma ssm": "Melanoma",
    "syringoma": "Syringoma",
    "urticaria": "Urticaria",
    "urticaria pigmentosa": "Urticaria_Pigmentosa",
}


def tiny(**changes: object) -> Taxonomy:
    raw: dict[str, object] = {
        "name": "tiny",
        "title": "Tiny",
        "classes": [
            {"key": "Nevus", "name": "Mole", "synonyms": ["nv"]},
            {"key": "Melanoma", "name": "Melanoma", "urgency": "urgent"},
            {"key": "Wart", "name": "Wart"},
        ],
    }
    return Taxonomy.parse(raw | changes)


def test_the_packaged_taxonomies_have_their_classes() -> None:
    assert {name: len(each.keys) for name, each in PACKAGED.items()} == {
        "fitzpatrick16": 16,
        "ham10000": 7,
        "isic9": 9,
        "skin10": 10,
        "skin100": 100,
    }


def test_class_lists_are_the_published_ones(real: Path) -> None:
    with (real / "taxonomy" / "skin100_train_counts_derived.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert SKIN100.keys == tuple(row["class"] for row in rows)
    ten = tuple(row["class"] for row in rows if row["in_skin10"] == "1")
    assert PACKAGED["skin10"].keys == ten


def test_isic9_finds_every_folder_of_the_real_images(real: Path) -> None:
    folders = {folder.name for folder in (real / "isic9" / "Train").iterdir()}
    found = {each.key for name in folders if (each := PACKAGED["isic9"].find(name))}
    assert found == set(PACKAGED["isic9"].keys)


def test_skin10_says_the_same_as_skin100() -> None:
    ten = PACKAGED["skin10"]
    assert ten.classes == SKIN100.subset(ten.keys).classes


@pytest.mark.parametrize("name", PACKAGED)
def test_every_class_has_an_existing_billable_code_and_a_description(name: str) -> None:
    with warnings.catch_warnings():
        # Its import takes seconds, and reads its data by a deprecated function.
        warnings.simplefilter("ignore", DeprecationWarning)
        import simple_icd_10_cm as icd
    for condition in PACKAGED[name].classes:
        assert icd.is_valid_item(condition.icd10), condition
        # A leaf: chapters, blocks and unfinished categories are not codes of a disease.
        assert icd.is_leaf(condition.icd10), condition
        assert condition.description.endswith("."), condition
        assert "\n" not in condition.description


@pytest.mark.parametrize("name", PACKAGED)
def test_no_synonym_repeats_another_label_of_its_class(name: str) -> None:
    for condition in PACKAGED[name].classes:
        labels = [
            normalise(label) for label in {condition.key, condition.name, *condition.synonyms}
        ]
        assert {labels.count(normalise(label)) for label in condition.synonyms} <= {1}, condition


@pytest.mark.parametrize("name", PACKAGED)
def test_what_may_kill_is_never_routine(name: str) -> None:
    # ICD-10-CM: C00-C97 malignant, D00-D09 in situ; L10 pemphigus kills untreated.
    for condition in PACKAGED[name].classes:
        if condition.icd10 < "D1" or condition.icd10.startswith("L10"):
            expected = (
                {"urgent"} if condition.icd10[:3] in {"C43", "C79", "L10"} else {"soon", "urgent"}
            )
            assert condition.icd10[0] in "AB" or condition.urgency in expected, condition


def test_nothing_claims_a_review() -> None:
    assert {taxonomy.review_note for taxonomy in PACKAGED.values()} == {"not clinically reviewed"}
    assert tiny(reviewed_by="Dr A").review_note == "clinically reviewed by Dr A"


@pytest.mark.parametrize(("label", "key"), FITZPATRICK.items())
def test_fitzpatrick_labels_map(label: str, key: str) -> None:
    found = SKIN100.find(label)
    assert found is not None
    assert found.key == key


def test_every_other_fitzpatrick_label_is_unmapped_with_a_reason(real: Path) -> None:
    with (real / "tables" / "fitzpatrick17k.csv").open() as file:
        labels = {row["label"] for row in csv.DictReader(file)}
    assert {label for label in labels if SKIN100.find(label)} == set(FITZPATRICK)
    undecided = {label for label in labels - set(FITZPATRICK) if not SKIN100.why_unmapped(label)}
    assert not undecided
    assert len(labels) == len(FITZPATRICK) + len(SKIN100.unmapped) == 114


def test_a_label_cannot_be_mapped_and_unmapped() -> None:
    with pytest.raises(UserError, match="'NV' is in `unmapped` but also belongs to Nevus"):
        tiny(unmapped={"NV": "no mole"})
    with pytest.raises(UserError, match="'tick bite' has no reason"):
        tiny(unmapped={"tick bite": " "})
    assert tiny(unmapped={"tick bite": "no class of bites"}).why_unmapped("Tick-bite")


def test_ham10000_codes_map_where_they_mean_one_class() -> None:
    codes = ("bcc", "bkl", "df", "mel", "nv", "vasc")
    found = [PACKAGED["isic9"].find(code) for code in codes]
    assert [condition.key for condition in found if condition] == [
        "Basal_Cell_Carcinoma",
        "Pigmented_Benign_Keratosis",
        "Dermatofibroma",
        "Melanoma",
        "Nevus",
        "Vascular_Lesion",
    ]
    # akiec is both actinic keratosis and carcinoma in situ: nobody may claim it.
    assert {name for name in PACKAGED if PACKAGED[name].find("akiec")} == {"ham10000"}


@given(
    key=st.sampled_from(SKIN100.keys),
    separator=st.sampled_from(["_", " ", "-", "", "  ", "("]),
    upper=st.booleans(),
)
def test_find_ignores_case_and_separators(key: str, separator: str, upper: bool) -> None:
    label = key.replace("_", separator)
    found = SKIN100.find(label.upper() if upper else label.lower())
    assert found is SKIN100[key]


@given(st.text())
def test_normalise_is_idempotent_and_find_never_fails(label: str) -> None:
    assert normalise(normalise(label)) == normalise(label)
    found = SKIN100.find(label)
    assert (found is None) or normalise(label) != ""


def test_letters_of_every_script_count() -> None:
    assert normalise("Perlèche") == normalise("Perle\u0300che")
    assert normalise("मस्सा") != normalise("मसा")


def test_subset_keeps_the_order_and_forgets_the_rest() -> None:
    whole = tiny()
    assert whole.find("wart") is not None
    part = whole.subset(["Wart", "Nevus"])
    assert part.keys == ("Nevus", "Wart")
    assert part.find("melanoma") is None
    assert part.find("NV") == part["Nevus"] == whole["Nevus"]


def test_saved_taxonomy_loads_back_equal(tmp_path: Path) -> None:
    SKIN100.save(tmp_path / "own.yaml")
    assert load_taxonomy(tmp_path / "own.yaml") == SKIN100
    assert load_taxonomy(str(tmp_path / "own.yaml")) == SKIN100


def test_every_urgency_asks_for_an_examination() -> None:
    own = SkinClass(key="New_Class", name="New class")
    assert own.urgency == "unknown"
    assert own.advice == advice_for("unknown")
    begin = ("Examine the lesion", "A dermatologist should see the lesion")
    assert all(advice_for(urgency).startswith(begin) for urgency in get_args(Urgency))


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ([{"key": "A", "name": "A"}, {"key": "A", "name": "B"}], "two classes have the key 'A'"),
        (
            [{"key": "A", "name": "A", "synonyms": ["x y"]}, {"key": "X_Y", "name": "B"}],
            "'X_Y' belongs to both A and X_Y",
        ),
        ([{"key": "A", "name": "A", "synonyms": ["--"]}], "no letter or digit"),
        ([{"key": "../A", "name": "A"}], r"'classes.0.key' = '../A'"),
        ([{"key": "A", "name": "A", "icd10": "L700"}], r"'classes.0.icd10' = 'L700'"),
        ([{"key": "A", "name": "A", "urgency": "now"}], "'routine', 'soon', 'urgent'"),
        ([], "at least 1 item"),
    ],
)
def test_a_bad_taxonomy_is_one_sentence(classes: list[dict[str, object]], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        tiny(classes=classes)
    assert "\n" not in str(caught.value)


def test_unknown_names_and_keys_name_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"mean 'skin100'\? Valid: fitzpatrick16, ham10000, isic9, s"
    ):
        load_taxonomy("skin-100")
    with pytest.raises(UserError, match=r"gone\.yaml does not exist"):
        load_taxonomy(tmp_path / "gone.yaml")
    with pytest.raises(UserError, match="did you mean Melanoma"):
        SKIN100.subset(["Melanomma"])
    with pytest.raises(UserError, match="give at least one of its classes"):
        SKIN100.subset([])


def test_steps_that_differ_in_urgency_differ_in_words_and_are_decisive() -> None:
    steps = ("urgent", "soon", "soon_without_time", "routine", "unknown")
    first = [advice_for(step).partition(". ")[0] for step in steps]
    assert len(set(first)) == len(steps)
    assert all(said.startswith("A dermatologist should see the lesion") for said in first[:3])
    assert first[4].startswith("Examine the lesion yourself, and refer it if ")
    assert advice_for("urgent_cancer") == "A dermatologist should see the lesion within days."
