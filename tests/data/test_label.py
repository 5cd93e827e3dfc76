import pytest

from skindx.data.labels import map_labels, taxonomy_of, unmapped_label
from skindx.errors import UserError
from skindx.taxonomy import load_taxonomy

ISIC = load_taxonomy("isic9")


def test_spellings_and_synonyms_meet_in_one_key() -> None:
    mapped = map_labels(["melanoma", "MELANOMA", "basal_cell carcinoma", "x"], ISIC)
    assert mapped == {
        "melanoma": "Melanoma",
        "MELANOMA": "Melanoma",
        "basal_cell carcinoma": "Basal_Cell_Carcinoma",
    }


def test_the_wrong_taxonomy_is_refused_with_the_nearest_classes() -> None:
    labels = ["nevus"] * 2 + ["nevus of ito"] * 3
    with pytest.raises(UserError, match=r"3 of 5 images, such as 'nevus of ito' .*Nevus"):
        map_labels(labels, ISIC)
    assert map_labels([*labels, "nevus"], ISIC) == {"nevus": "Nevus"}


def test_a_recipe_may_leave_most_labels_out() -> None:
    labels = ["nevus", "nevus of ito", "nevus of ito", "nevus of ito"]
    with pytest.raises(UserError, match="set min_known"):
        map_labels(labels, ISIC, 0.3)
    assert map_labels(labels, ISIC, 0.25) == {"nevus": "Nevus"}


def test_a_decided_stranger_has_its_own_reason() -> None:
    skin100 = load_taxonomy("skin100")
    reason, detail = unmapped_label("Keloid", skin100)
    assert reason == "unmapped-label"
    assert detail.startswith("'Keloid' means no class of skin100: a scar that grows beyond")
    assert unmapped_label("zebra", skin100)[0] == "unknown-label"


def test_labels_make_a_taxonomy_of_their_own() -> None:
    taxonomy = taxonomy_of(["Acne (mild)", "acne mild", "tinea_pedis", "Ичтиоз"], "mine")
    assert taxonomy.keys == ("Acne_mild", "tinea_pedis", "Ичтиоз")
    assert {condition.urgency for condition in taxonomy.classes} == {"unknown"}
    assert map_labels(["ACNE MILD", "Ичтиоз"], taxonomy).keys() == {"ACNE MILD", "Ичтиоз"}


def test_a_label_of_punctuation_is_refused() -> None:
    with pytest.raises(UserError, match=r"'\+\+' holds no letter or digit"):
        taxonomy_of(["a", "++"], "mine")
