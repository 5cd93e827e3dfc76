"""What classes that people name themselves are taken for, and which of them need a decision."""

import csv
from pathlib import Path

import pytest

from skindx.core.errors import UserError
from skindx.data.labels import taxonomy_of
from skindx.taxonomy import SkinClass, Taxonomy, load_taxonomy, normalise, taxonomy_names
from skindx.taxonomy.label_matches import (
    binary_target,
    check_urgencies,
    described,
    looks_like,
    match,
    with_urgencies,
    without_urgency,
)
from skindx.taxonomy.lexicon import entries, name_keys

MEANT = {
    "Melanoma": "melanoma MELANOMAS Melanom Melanome mélanome mélanomes_malins MEL C43 C43.9 c43-59"
    " 2C30 2C30.Z malignant-melanoma-of-skin melanoma_malignum Melanoma,_NOS 2._Melanoma_15.75k"
    " C43.5_melanoma melanoma_(C43)",
    "Nevus (mole)": "nevus nevi Naevus nv NEV Nävus Naevi Muttermale Leberfleck lunares nevos"
    " grain_de_beauté D22.5 Nevus,_NOS",
    "Basal cell carcinoma": "bcc BasalCellCarcinoma carcinoma,_basal_cell Basaliom"
    " Basalzellkarzinome carcinome_basocellulaire carcinoma_basocelular carcinoma_basocellulare"
    " C44.91 2C32.1 4._Basal_Cell_Carcinoma_(BCC)_3323",
    "Squamous cell carcinoma": "SCC Spinaliom Plattenepithelkarzinom carcinome_épidermoïde"
    " carcinomas_espinocelulares C44.92 C44.329 SCCKA",
    "Actinic keratosis": "AK aktinische_Keratosen kératose_actinique queratosis_actinica L57.0",
    "Seborrheic keratosis": "SEK seborrhoeic_keratoses verruca_seborrhoica L82.0",
    "Actinic keratosis or carcinoma in situ": "akiec AKIEC",
    "Herpes zoster (shingles)": "zona Gürtelrose Guertelrose culebrilla herpes_zóster B02.9",
    "Scabies": "Krätze sarna gale B86",
    "Angioedema": "Quincke-Ödem angio-œdème angioedema T78.3",
}
PAIRS = [
    (name, label.replace("_", " ")) for name, labels in MEANT.items() for label in labels.split()
]


@pytest.mark.parametrize(("name", "label"), PAIRS)
def test_a_label_in_any_language_is_matched(name: str, label: str) -> None:
    known = match(label)
    assert known is not None
    assert known.skin_class.name == name


def test_every_name_of_the_lexicon_means_its_entry_and_no_other() -> None:
    meant: dict[frozenset[str], set[str]] = {}
    for heading, entry in entries().items():
        assert match(heading), heading
        for name in (heading, *entry.names):
            assert match(name) == match(heading), name
            for key in name_keys(name):
                meant.setdefault(key, set()).add(heading)
    assert [key for key, headings in meant.items() if len(headings) > 1] == []


def test_what_only_the_lexicon_knows_has_an_urgency_and_the_rest_is_shipped() -> None:
    shipped = [load_taxonomy(name) for name in ("skin100", "isic9")]  # labels are looked up in them
    for heading, entry in entries().items():
        known = any(taxonomy.recognise(heading) for taxonomy in shipped)
        assert known != bool(entry.urgency and entry.icd10 and entry.description), heading


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("malignant", "a cancer"),
        ("Hautkrebs", "a cancer"),
        ("cáncer de piel", "a cancer"),
        ("tumeur maligne", "a cancer"),
        ("melanoma_dermoscopy", "a cancer"),
        ("melenoma", "a cancer"),
        ("C44.3", "a cancer"),
        ("C43 nevus", "a cancer"),
        ("MAL_OTH", "a cancer"),
        ("tumour", "a cancer"),
        ("меланома", "a cancer"),
        ("squamous dysplasia", "a cancer"),
        ("skin necrosis", "an emergency"),
        ("purpura", "an emergency"),
        ("Cellulitis Impetigo and other Bacterial Infections", "an emergency"),
        ("Notfall", "an emergency"),
        ("pemphigus foliaceus", "an emergency"),
        ("benign", ""),
        ("Seborrheic Keratoses and other Benign Tumors", ""),
        ("normal skin", ""),
        ("melasma", ""),
        ("porokeratosis", ""),
    ],
)
def test_what_looks_dangerous_is_never_passed_on_in_silence(label: str, kind: str) -> None:
    assert match(label) is None
    assert looks_like(SkinClass(key="x", name=label)) == kind


def test_no_dangerous_class_of_a_shipped_taxonomy_lacks_an_urgency() -> None:
    for name in taxonomy_names():
        check_urgencies(load_taxonomy(name))


def test_a_taxonomy_of_a_users_hand_is_asked_for_its_urgencies() -> None:
    raw = {
        "name": "mine",
        "title": "Mine",
        "classes": [
            {"key": "a", "name": "Naevus"},
            {"key": "b", "name": "Dark spot", "icd10": "C43.9"},
            {"key": "c", "name": "Rash", "synonyms": ["Stevens-Johnson"]},
        ],
    }
    mine = Taxonomy.parse(raw)
    assert without_urgency(mine.classes) == {"b": "a cancer", "c": "an emergency"}
    with pytest.raises(UserError, match=r"'b' looks like a cancer .*--urgency b=urgent") as caught:
        check_urgencies(mine)
    assert "\n" not in str(caught.value)
    decided = with_urgencies(mine, {"dark spot": "urgent", "RASH": "soon"})
    check_urgencies(decided)
    assert [each.urgency for each in decided.classes] == ["unknown", "urgent", "soon"]
    with pytest.raises(UserError, match=r"'wart', which is not a class .* a, b, c"):
        with_urgencies(mine, {"wart": "soon"})
    with pytest.raises(UserError, match="remove one of the two"):
        with_urgencies(mine, {"rash": "soon", "c": "urgent"})


def test_classes_of_one_meaning_share_no_label() -> None:
    classes = described({"melanoma": "melanoma", "Melanom": "Melanom", "mel": "mel", "x": "x"})
    Taxonomy.parse({"name": "n", "title": "n", "classes": [each.model_dump() for each in classes]})
    assert {each.icd10 for each in classes if each.key != "x"} == {"C43.9"}
    [alone] = described({"MEL": "MEL"})
    assert (alone.name, alone.urgency) == ("Melanoma", "urgent")
    assert "melanomas" in alone.synonyms


def test_a_taxonomy_finds_names_of_other_languages_and_codes_but_nothing_unmapped() -> None:
    isic9, skin100 = load_taxonomy("isic9"), load_taxonomy("skin100")
    for label in ("Melanom", "C43", "carcinoma, basal cell", "Dermatofibromata"):
        assert isic9.recognise(label), label
    assert isic9.recognise("akiec") is None
    assert skin100.recognise("lentigo maligna") is None
    assert skin100.recognise("maligna, lentigo") is None
    assert skin100.recognise("livedo racemosa") is None


_LABELS = Path(__file__).parent / "public_labels.csv"
"""Labels of public data sets (Fitzpatrick17k, Skin-100, ISIC, DermNet, DDI, PAD-UFES, SD-198)."""


def test_each_label_of_public_data_sets_means_what_is_written_beside_it() -> None:
    with _LABELS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 350
    for row in rows:
        known = match(row["label"])
        got = (known.skin_class.name, known.rule) if known else ("", "")
        assert got == (row["means"], row["by"]), row
        looks = looks_like(SkinClass(key="x", name=row["label"]))
        assert known or looks == row["looks_like"], row


PLAIN = """
true false single square squares misses miss zone zones tru no on off none normal healthy other
control negative benign unknown lesion skin photo image left right back front scare scared scary
shingle tag mold moll mol gull list lists lust like words world corn born ten mill acorn acres
ache tin tiny tune tunes rose roses rosy nave navy naive nerve blew blue plan plane plain plant
rush scab cast cost sore score solar polar stain strain moss mass seal scale fist pest posts the
be to of and in that have it for not with he as you do at this but his by from they we say her
she or an will my one all would there their what so up out if about who get which go me when
make can time just him know take people into year good some could them see than then now look
only come its over think also two how our work first well way even new want because any these
give day most us case patient clinical female male lateral medial biopsy margin border colour
pigment flat raised dry wet hair nail arm leg face hand foot chest grade stage type class group
sample test train val dose drug cream steroid doctor clinic visit
"""


def test_a_plain_word_is_no_condition() -> None:
    assert {word: match(word) for word in PLAIN.split() if match(word)} == {}


NAMELESS = """
True yes Y case Cases positive abnormal 1 0 3.5 1e3 0x10 12:30 -1 ① label_2 class-3 target:1
malignant krank oui sí
"""


@pytest.mark.parametrize("label", NAMELESS.split())
def test_a_class_that_names_no_condition_may_be_a_cancer(label: str) -> None:
    assert match(label) is None
    mine = Taxonomy.parse({"name": "m", "title": "m", "classes": [{"key": "x", "name": label}]})
    assert without_urgency(mine.classes) == {"x": "a cancer"}
    with pytest.raises(UserError, match="--urgency x=urgent"):
        check_urgencies(mine)


def test_fitzpatrick_labels_keep_their_meaning(real: Path) -> None:
    with (real / "tables" / "fitzpatrick17k.csv").open() as file:
        labels = {row["label"] for row in csv.DictReader(file)}
    skin100 = load_taxonomy("skin100")
    exact = {
        normalise(text): each.key
        for each in skin100.classes
        for text in (each.key, each.name, *each.synonyms)
    }
    for label in labels:
        found = skin100.recognise(label)
        assert (found.key if found else None) == exact.get(normalise(label)), label
    left = {label for label in labels if not match(label)}
    assert not {label for label in left if looks_like(SkinClass(key="x", name=label))}


@pytest.mark.parametrize(
    ("labels", "positive"),
    [
        (("0", "1"), "1"),
        (("0.0", "1.0"), "1.0"),
        (("False", "True"), "True"),
        (("no", "yes"), "yes"),
        (("negative", "Positive"), "Positive"),
        (("benign", "malignant"), "malignant"),
        (("B", "M"), "M"),
        (("N", "P"), "P"),
        (("control", "case"), "case"),
        (("gutartig", "bösartig"), "bösartig"),
        (("healthy", "cancer"), "cancer"),
    ],
)
def test_the_positive_of_two_labels_is_asked_for_its_name(
    labels: tuple[str, str], positive: str
) -> None:
    target = binary_target(labels)
    assert target == binary_target(reversed(labels))
    assert target is not None
    assert {target.positive, target.negative} == set(labels)
    assert target.positive == positive
    with pytest.raises(UserError, match="urgency") as caught:
        taxonomy_of(labels, "mine")
    assert positive in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "labels",
    [
        ("a", "b"),
        ("melanoma", "nevus"),
        ("0", "1", "2"),
        ("1", "2"),
        ("benign",),
        ("benign", "mel"),
    ],
)
def test_other_labels_are_no_binary_target(labels: tuple[str, ...]) -> None:
    assert binary_target(labels) is None


def test_numbers_without_names_are_said_even_with_an_urgency() -> None:
    with pytest.raises(
        UserError, match=r"'0' names no condition.*what is '1'.*`labels: \{\"1\": "
    ) as e:
        taxonomy_of(["0", "1"], "mine")
    assert "--urgency 0=routine --urgency 1=urgent" in str(e.value)
    taxonomy, lines = taxonomy_of(["0", "1"], "mine", {"0": "routine", "1": "urgent"})
    assert [each.urgency for each in taxonomy.classes] == ["routine", "urgent"]
    assert any(line.startswith("'0' and '1' name no condition, and an answer") for line in lines)
    _, lines = taxonomy_of(["Melanoma", "Nevus"], "mine")
    assert not any("no condition" in line for line in lines)
    with pytest.raises(UserError, match=r"labels: \{\"0\": NAME, \"1\": NAME, \"2\": NAME\}"):
        taxonomy_of(["0", "1", "2"], "mine")
