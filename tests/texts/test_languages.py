"""Languages beside English: complete, with the same figures, not stale, and never mixed."""

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from stale_texts import noted, stale
from test_catalogue import VALUES

from skindx.core.errors import UserError
from skindx.diagnosis.case import Patient, values_of
from skindx.diagnosis.intake import INTAKE
from skindx.diagnosis.report import pdf_sheet
from skindx.models.urgent_risk import not_useful
from skindx.taxonomy import load_taxonomy, taxonomy_names, urgent_conditions
from skindx.taxonomy.lexicon import SITES
from skindx.texts import catalogue
from skindx.texts.catalogue import (
    FOLDER,
    LANGUAGE,
    accepted,
    checked_language,
    languages,
    missing,
    percent,
    retold,
    sentences,
    speaking,
    spoken,
    text,
    text_in,
    word,
)

FOLDERS = [one.name for one in FOLDER.iterdir() if one.is_dir() and one.name[0] != "_"]
OTHERS = sorted({*FOLDERS} - {LANGUAGE})
KIND = re.compile(r"\{([a-z_]+):([a-z0-9]+)\}")
_TITLE = 64
"""Letters of a short value of DICOM."""


@pytest.mark.parametrize("language", OTHERS)
def test_a_language_has_every_sentence_with_its_values(language: str) -> None:
    lacks = missing(language)
    assert lacks == [], (
        f"{language}/ has these keys not, too many or with other values than English: "
        f"{', '.join(lacks)}; translate them, or the language is not offered"
    )
    assert language in languages()


@pytest.mark.parametrize("language", OTHERS)
def test_no_translation_is_stale(language: str) -> None:
    keys = stale(language)
    assert keys == [], (
        f"the English of these keys is not what {language}/ translates: {', '.join(keys)}; "
        "translate them, then run: python tests/support/stale_texts.py "
        f"{language} {' '.join(keys)}"
    )
    assert set(noted()) == set(OTHERS)


@pytest.mark.parametrize("language", OTHERS)
def test_a_translation_has_the_same_figures_commands_and_formats(language: str) -> None:
    for key, english in sentences(LANGUAGE).items():
        theirs = sentences(language)[key]
        for ours, other in ((english.one, theirs.one), (english.other, theirs.other)):
            figures = [
                sorted(re.findall(r"\d+(?:\.\d+)?", KIND.sub("", one))) for one in (ours, other)
            ]
            assert figures[0] == figures[1], key
            for form in (r"`[^`]+`", r"--[a-z]+", r"skindx|JPEG|DICOM|HEIC|PNG|WebP|CSV|SHA-256"):
                assert sorted(re.findall(form, ours)) == sorted(re.findall(form, other)), key


@pytest.mark.parametrize("language", OTHERS)
def test_a_translated_sentence_is_one_and_at_most_30_words(language: str) -> None:
    for key, sentence in sentences(language).items():
        english = sentences(LANGUAGE)[key].other
        for form in filter(None, (sentence.one, sentence.other)):
            prose = re.sub(r"\{[a-z_]+:[a-z0-9]+\}|\([^)]*\)", "x", form)
            assert len(prose.split()) <= 30, (key, len(prose.split()))
            assert len(re.findall(r"[.!?](?=\s|$)", prose)) <= 1, key
            assert form[-1:] == english[-1:] or english[-1:] not in ".?:", key
            assert not re.search(r";|[a-z] [–—-] [a-z]", prose), key


@pytest.mark.parametrize("language", OTHERS)
def test_names_of_figures_fit_into_dicom(language: str) -> None:
    for key, sentence in sentences(language).items():
        if key.startswith(("risk_", "sr_", "in_possible")) and not sentence.other.endswith("."):
            longest = KIND.sub(lambda one: "prueba" if one[1] == "split" else "", sentence.other)
            assert len(longest) + (15 if key in ("risk_missed", "risk_called") else 0) < _TITLE, key


@pytest.mark.parametrize("language", OTHERS)
def test_every_name_and_description_of_the_shipped_lists_is_translated(language: str) -> None:
    released = (Path(__file__).parents[2] / "models").glob("*/*/bundle/taxonomy.yaml")
    lists = [load_taxonomy(one) for one in (*taxonomy_names(), *released)]
    classes = [one for taxonomy in lists for one in taxonomy.classes]
    said = {one.name for one in (*classes, *urgent_conditions())}
    said |= {one.description for one in classes} | {*SITES, "urgent", "soon", "routine", "unknown"}
    for name, fact in INTAKE.items():
        said |= {
            fact.question,
            fact.fhir,
            *fact.notes.values(),
            *filter(None, (fact.report, fact.unit)),
        }
        said.add(fact.noun or name)
        if not fact.number:
            for value in values_of(name):
                said |= {str(value), fact.words.get(value) or str(value).capitalize()}
    words = yaml.safe_load((FOLDER / language / "words.yaml").read_text(encoding="utf-8"))
    assert said - set(words) == set(), "words.yaml lacks them"
    assert all(isinstance(one, str) and one for pair in words.items() for one in pair)


def test_a_spanish_name_is_recognised_as_a_label_of_its_class() -> None:
    unlike = {}
    for name in taxonomy_names():
        taxonomy = load_taxonomy(name)
        with speaking("es"):
            said = {one.key: word(one.name) for one in taxonomy.classes}
        for key, label in said.items():
            found = taxonomy.recognise(label)
            if found is None or found.key != key:
                unlike[label] = found and found.key
    assert unlike == {
        "Melanoma maligno": "Melanoma",  # skin100 has both
        "Queratosis actínica o enfermedad de Bowen": None,  # two conditions
    }


def test_values_are_written_as_a_reader_of_spanish_expects_them() -> None:
    signs = catalogue._signs("es")
    written = {kind: catalogue.KINDS[kind](VALUES[kind], signs) for kind in VALUES}
    assert written == {
        "count": "1942", "number": "5", "decimal": "1,33", "signed": "−0,133", "percent": "46 %",
        "of100": "10", "risk": "8,0 %", "name": "Melanoma", "names": "a, b y c", "cell": "46 %",
        "share": "3,1 % (intervalo del 95 %: de 0,8 a 7,9 %, 64 imágenes)", "either": "a o b",
        "shares": "Nevus 67 % y Wart 33 %", "tally": "2 Nevus y 1 Wart",
        "date": "4 de marzo de 2026",
        "time": "4 de marzo de 2026, 05:06 UTC",
        "seconds": "4 de marzo de 2026, 05:06:07 UTC", "day": "4 de mar de 2026",
        "moment": "4 de mar de 2026, 05:06 UTC",
    }  # fmt: skip
    assert catalogue.KINDS["count"](41942, signs) == "41.942"
    with speaking("es"):
        assert percent(0.004) == "< 1 %"
        assert text("known_names", names=["Melanoma", "Impetigo"]) == "Conoce Melanoma e Impétigo."
        assert "Nevo u onicomicosis" in text("no_wait_unknown", names=["Nevo", "onicomicosis"])
        assert "de prueba" in text("advised_raised", split="test", share=VALUES["share"])
        assert "reúne por sí sola más de 99 %" in text("because_alone", name="Scar", share=0.999)
        assert text("bundle", name="test", day="2026", version="1").startswith(
            "El paquete es test,"
        )


def test_what_an_evaluation_kept_in_english_is_told_in_the_spoken_language() -> None:
    kept = not_useful(others_urgent=VALUES["share"].model_copy(update={"value": 0.86}),
                      images={"Melanoma": 1}, urgent=["Melanoma"])  # fmt: skip
    assert [retold(one, "not_useful_") for one in kept] == list(kept)
    with speaking("es"):
        told = [retold(one, "not_useful_") for one in kept]
        assert told[0].startswith("Califica de urgentes 86,0 % de las imágenes")
        assert "de 0,8 % a 7,9 %" in told[0]
        assert told[1] == "Melanoma tiene 1 imagen de calibración, y se necesitan 59 o más."
        assert retold("Something else.", "not_useful_") == "Something else."


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("es", "es"), ("es-MX,es;q=0.9,en;q=0.8", "es"), ("en-GB,es;q=0.9", "en"), ("", "en"),
        ("fr,de;q=0.8", "en"), ("fr,es;q=0.5", "es"), ("es;q=0", "en"), ("*", "en"),
        ("ES-419", "es"), ("es;q=x,en;q=0.1", "en"), (",;q=,=;es", "en"),
    ],
)  # fmt: skip
def test_a_browser_gets_the_language_that_it_likes_most(header: str, language: str) -> None:
    assert accepted(header) == language


def test_english_is_spoken_where_nobody_chose_and_where_a_language_is_not_there() -> None:
    assert spoken() == "en"
    with speaking("tlh"):
        assert spoken() == "en"
    with speaking("es"):
        with speaking("en"):
            assert text("does_not_know") == "The model does not know."
        assert text("does_not_know") == "El modelo no lo sabe."
    assert spoken() == "en"
    assert checked_language("auto", "auto") == "auto"
    with pytest.raises(UserError, match="no language 'tlh'; valid: en, es"):
        checked_language("tlh")


def test_tasks_and_threads_do_not_mix_their_languages() -> None:
    async def asked(language: str) -> list[str]:
        said = []
        with speaking(language):
            for _ in range(20):
                await asyncio.sleep(0)
                said.append(await asyncio.to_thread(text, "does_not_know"))
                said.append(text("does_not_know"))
        return said

    async def both() -> list[list[str]]:
        return list(await asyncio.gather(*(asked(one) for one in ("en", "es") * 4)))

    right = [{text_in(one, "does_not_know", {})} for one in ("en", "es") * 4]
    assert [set(said) for said in asyncio.run(both())] == right

    def in_thread(language: str) -> set[str]:
        with speaking(language):
            return {text("does_not_know") for _ in range(500)}

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(in_thread, ("en", "es") * 4)) == right


def shouted(value: object) -> object:
    """Return English in capital letters, without changing its placeholders."""
    if isinstance(value, dict):
        return {key: shouted(one) for key, one in value.items()}
    if not isinstance(value, str):
        return value
    return "".join(
        one if one.startswith("{") else one.upper() for one in re.split(r"(\{[^}]*\})", value)
    )


@pytest.fixture
def with_made_up(tmp_path: Path) -> Iterator[Path]:
    """Give the catalogue a folder in which a further language is English in capital letters."""
    for language in ("en", "xx"):
        (tmp_path / language).mkdir()
        for file in (FOLDER / "en").iterdir():
            data = file.read_text(encoding="utf-8")
            if language == "xx" and file.name != "formats.yaml":
                data = yaml.safe_dump(shouted(yaml.safe_load(data)), allow_unicode=True)
            (tmp_path / language / file.name).write_text(data, encoding="utf-8")
    caches = (languages, sentences, catalogue._signs, catalogue._words, catalogue._files)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "FOLDER", tmp_path)
        for one in caches:
            one.cache_clear()
        yield tmp_path
    for one in caches:
        one.cache_clear()


def test_a_folder_with_all_keys_is_all_that_a_language_takes(with_made_up: Path) -> None:
    assert languages() == ("en", "xx")
    assert accepted("xx,en;q=0.5") == "xx"
    with speaking("xx"):
        assert text("does_not_know") == "THE MODEL DOES NOT KNOW."
        assert text("knows", n=7) == "THE MODEL KNOWS 7 CONDITIONS AND NO OTHERS."
        assert catalogue.script_sentences()["language"] == "xx"
        assert word("Nevus (mole)") == "Nevus (mole)"
        assert Patient(site="back").place == "back"


def test_a_folder_that_lacks_a_key_is_not_offered(with_made_up: Path) -> None:
    file = with_made_up / "xx" / "basis.yaml"
    entries = yaml.safe_load(file.read_text(encoding="utf-8"))
    entries["not_measured"] = "{count:count}"
    del entries["calibrated"]
    file.write_text(yaml.safe_dump(entries), encoding="utf-8")
    assert languages() == ("en",)
    assert missing("xx") == ["calibrated", "not_measured"]


def test_the_letters_of_spanish_are_printed(tmp_path: Path) -> None:
    letters = "áéíóúñüÁÉÍÓÚÑÜ¿¡«»"
    assert pdf_sheet.in_latin(letters) == (letters, True)
    for fonts in (pdf_sheet.dejavu, lambda: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pdf_sheet, "dejavu", fonts)
            sheet = pdf_sheet.Sheet("x", datetime(2026, 3, 4, tzinfo=UTC))
            sheet.text(letters)
            assert not sheet.lacking
            sheet.close()
