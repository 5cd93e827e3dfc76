"""Which urgent conditions a taxonomy does not know."""

import pytest

from skindx.taxonomy import (
    SkinClass,
    load_taxonomy,
    taxonomy_names,
    unknown_to,
    unknown_urgent,
    urgent_conditions,
)

MELANOMA, SCC, *_ = urgent_conditions()


def names(*classes: SkinClass) -> set[str]:
    return {condition.name for condition in unknown_to(classes)}


@pytest.mark.parametrize("name", taxonomy_names())
def test_the_list_holds_every_urgent_class_of_our_own_taxonomies(name: str) -> None:
    for condition in load_taxonomy(name).classes:
        if condition.urgency == "urgent":
            meant = [one for one in urgent_conditions() if one.is_meant_by(condition)]
            kinds = {kind for one in urgent_conditions() for kind in one.kinds}
            assert meant or condition.name.casefold() in kinds, condition.name


def test_our_taxonomies_by_hand() -> None:
    isic9 = {condition.name for condition in unknown_urgent(load_taxonomy("isic9"))}
    assert "melanoma" not in isic9
    assert "invasive squamous cell carcinoma" not in isic9
    assert {"Merkel cell carcinoma", "shingles (herpes zoster)", "syphilis"} <= isic9
    skin10 = [
        condition for condition in unknown_urgent(load_taxonomy("skin10")) if condition.decides
    ]
    assert skin10 == [MELANOMA, SCC]
    assert not any(condition.decides for condition in unknown_urgent(load_taxonomy("skin100")))


@pytest.mark.parametrize(
    ("one", "known"),
    [
        (SkinClass(key="mel", name="Melanom", icd10="C43.9"), {"melanoma"}),
        (SkinClass(key="x", name="Dark cancer", synonyms=("Malignant_Melanoma",)), {"melanoma"}),
        (SkinClass(key="scc", name="Spinaliom"), {"invasive squamous cell carcinoma"}),
        (
            SkinClass(key="s", name="Spinaliom", icd10="C44.329"),
            {"invasive squamous cell carcinoma"},
        ),
        (SkinClass(key="e", name="Ekzem", icd10="B00.0"), {"eczema herpeticum"}),
        (SkinClass(key="p", name="Purpura fulminans"), {"meningococcal purpura"}),
        (SkinClass(key="q", name="Swelling", icd10="T78.3XXA"), {"angioedema"}),
        # One kind of melanoma is not all of it, whatever its code; nor is basal cell carcinoma.
        (SkinClass(key="LMM", name="Lentigo maligna melanoma", icd10="C43.9"), set()),
        (SkinClass(key="bcc", name="Basal cell carcinoma", icd10="C44.91"), set()),
        (SkinClass(key="b", name="Basal cell carcinoma", icd10="C44.212"), set()),
        (SkinClass(key="nevus", name="Nevus, no melanoma"), set()),
        (
            SkinClass(key="malignant", name="Malignant"),
            {"melanoma", "invasive squamous cell carcinoma", "Merkel cell carcinoma"}
            | {"metastasis of another cancer"},
        ),
    ],
)
def test_a_class_is_recognised_by_its_names_and_its_code(one: SkinClass, known: set[str]) -> None:
    assert {condition.name for condition in urgent_conditions()} - names(one) == known
