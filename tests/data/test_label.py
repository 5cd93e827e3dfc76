import unicodedata

import pytest

from skindx.core.errors import UserError
from skindx.data.labels import left_out_notes, map_labels, match_notes, taxonomy_of, unmapped_label
from skindx.taxonomy import Taxonomy, load_taxonomy
from skindx.taxonomy.lexicon import words

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
    with pytest.raises(UserError, match=r"3 of 5 images, .*'nevus of ito' .*Nevus"):
        map_labels(labels, ISIC)
    assert map_labels([*labels, "nevus"], ISIC) == {"nevus": "Nevus"}


def test_a_recipe_may_leave_most_labels_out() -> None:
    labels = ["nevus", "nevus of ito", "nevus of ito", "nevus of ito"]
    with pytest.raises(UserError, match="lower `min_known`"):
        map_labels(labels, ISIC, 0.3)
    assert map_labels(labels, ISIC, 0.25) == {"nevus": "Nevus"}


def test_a_decided_stranger_has_its_own_reason() -> None:
    skin100 = load_taxonomy("skin100")
    reason, detail = unmapped_label("Keloid", skin100)
    assert reason == "unmapped-label"
    assert detail.startswith("'Keloid' means no class of skin100: a scar that grows beyond")
    assert unmapped_label("zebra", skin100)[0] == "unknown-label"


def test_labels_make_a_taxonomy_of_their_own() -> None:
    taxonomy, lines = taxonomy_of(["Acne (mild)", "acne mild", "tinea_pedis", "Ичтиоз"], "mine")
    assert taxonomy.keys == ("Acne_mild", "tinea_pedis", "Ичтиоз")
    assert [each.urgency for each in taxonomy.classes] == ["unknown", "routine", "unknown"]
    assert map_labels(["ACNE MILD", "Ичтиоз"], taxonomy).keys() == {"ACNE MILD", "Ичтиоз"}
    assert lines == [
        "labels 'Acne (mild)' and 'acne mild' are one class: they differ in case, blanks, signs or "
        "the form of letters alone.",
        "class 'tinea pedis' is taken for Tinea pedis (skin100), ICD-10 B35.3, routine, by its "
        "name.",
        "no shipped taxonomy knows 'Acne (mild)' (urgency unknown), 'Ичтиоз' (urgency unknown): no "
        "ICD-10 code; --urgency CLASS=urgent|soon|routine sets the urgency.",
    ]


def test_labels_that_mean_one_condition_stay_apart_and_are_named() -> None:
    taxonomy, lines = taxonomy_of(["Melanom", "melanoma", "nevus"], "mine", {"nevus": "soon"})
    assert taxonomy.keys == ("Melanom", "melanoma", "nevus")
    assert [each.urgency for each in taxonomy.classes] == ["urgent", "urgent", "soon"]
    assert [each.icd10 for each in taxonomy.classes] == ["C43.9", "C43.9", "D22.9"]
    assert any("'Melanom' and 'melanoma' mean Melanoma alike" in line for line in lines)
    assert any("routine, by its name; urgency soon as given." in line for line in lines)


def test_a_class_that_looks_dangerous_needs_an_urgency() -> None:
    with pytest.raises(UserError, match=r"cancer .*skin_cancer=urgent"):
        taxonomy_of(["skin cancer", "nevus"], "mine")
    taxonomy, _ = taxonomy_of(["skin cancer", "nevus"], "mine", {"Skin Cancer": "urgent"})
    assert taxonomy["skin_cancer"].urgency == "urgent"


def test_a_chosen_taxonomy_takes_names_of_other_languages_and_says_so() -> None:
    known = map_labels(["Melanom", "nevus", "C44.91"], ISIC)
    assert known == {"Melanom": "Melanoma", "nevus": "Nevus", "C44.91": "Basal_Cell_Carcinoma"}
    assert match_notes(known, ISIC) == [
        "label 'C44.91' is taken for Basal_Cell_Carcinoma of isic9.",
        "label 'Melanom' is taken for Melanoma of isic9.",
    ]


def test_cancers_that_a_chosen_taxonomy_leaves_out_are_named() -> None:
    notes = left_out_notes({"Merkel cell carcinoma": 1, "malignant": 3, "wart": 9}, ISIC)
    assert [note.split(":")[0] for note in notes] == [
        "label 'Merkel cell carcinoma' looks like a cancer and is no class of isic9",
        "label 'malignant' looks like a cancer and is no class of isic9",
    ]
    assert "its 1 image is left out" in notes[0]


def test_a_label_of_punctuation_is_refused() -> None:
    with pytest.raises(UserError, match=r"'\+\+' has no letter or digit"):
        taxonomy_of(["a", "++"], "mine")


@pytest.mark.parametrize(
    ("labels", "keys"),
    [
        (["①色素性母斑", "②酒さ", "lesion 5cm²"], {"1色素性母斑", "2酒さ", "lesion_5cm2"}),
        (["DERİ", "deri", "Der\u0131"], {"DERİ"}),
        (["na\u0308vus", "n\u00e4vus", "NÄVUS"], {"NÄVUS"}),
        (["ｎｅｖｕｓ", "nevus", "ne\u00advus"], {"nevus"}),
        (["चर्म रोग", "चर्म  रोग", "फोड़ा"], {"चर्म_रोग", "फोड़ा"}),
        (["ไฝ", "ฝ"], {"ไฝ", "ฝ"}),
        (["half ½", "৴ x"], {"half_1_2", "x"}),
    ],
)
def test_labels_of_all_scripts_make_keys_and_those_that_fold_alike_are_one(
    labels: list[str], keys: set[str]
) -> None:
    taxonomy, lines = taxonomy_of([*labels, "other"], "mine")
    assert set(taxonomy.keys) == {unicodedata.normalize("NFC", key) for key in keys} | {"other"}
    assert all(taxonomy.find(label) for label in labels)
    assert any("are one class" in line for line in lines) == (len(labels) > len(keys))


def test_the_words_of_indic_and_thai_names_stay_whole() -> None:
    assert words("चर्म_रोग") == ["चर्म", "रोग"]
    assert words("ฝีที่ผิวหนัง") == ["ฝีที่ผิวหนัง"]


def test_a_label_that_cannot_name_a_class_is_refused_in_our_words() -> None:
    for label, why in (("!?", "has no letter or digit"), ("क" * 100, "shorten it to 240 bytes")):
        with pytest.raises(UserError, match=why) as caught:
            taxonomy_of([label], "mine")
        assert label[:10] in str(caught.value)
    raw = {"name": "m", "title": "m", "classes": [{"key": "cm²", "name": "x"}]}
    with pytest.raises(UserError, match=r"'cm²'.*a key has only letters, digits, _ and -"):
        Taxonomy.parse(raw)


def test_a_taxonomy_of_an_older_version_may_have_names_that_now_fold_alike() -> None:
    classes = [{"key": "DERİ", "name": "DERİ"}, {"key": "deri", "name": "deri"}]
    older = Taxonomy.parse({"name": "m", "title": "m", "classes": classes})
    assert [older.find(key).key for key in older.keys] == ["DERİ", "deri"]
