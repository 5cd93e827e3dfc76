import pytest

from skindx.data.label import map_labels, taxonomy_of
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
    with pytest.raises(UserError, match=r"3 of 5 pictures, such as 'nevus of ito' .*Nevus"):
        map_labels(labels, ISIC)
    assert map_labels([*labels, "nevus"], ISIC) == {"nevus": "Nevus"}


def test_labels_make_a_taxonomy_of_their_own() -> None:
    taxonomy = taxonomy_of(["Acne (mild)", "acne mild", "tinea_pedis", "Ичтиоз"], "mine")
    assert taxonomy.keys == ("Acne_mild", "tinea_pedis", "Ичтиоз")
    assert {each.urgency for each in taxonomy.classes} == {"unknown"}
    assert map_labels(["ACNE MILD", "Ичтиоз"], taxonomy).keys() == {"ACNE MILD", "Ичтиоз"}


def test_a_label_of_punctuation_is_refused() -> None:
    with pytest.raises(UserError, match=r"'\+\+' holds no letter or digit"):
        taxonomy_of(["a", "++"], "mine")
