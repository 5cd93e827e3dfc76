"""The answers of the six bundles in Spanish, by each way out: no English sentence is left."""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clinical_answers import WHEN
from english_left import english_in
from pdf_words import words_of
from skin_photo import skin_photo
from test_answer_matrix import (  # noqa: F401 (pytest finds fixtures by their names here)
    KINDS,
    WAYS,
    Answers,
    answers_by,
    bundles,
    evaluated,
    fhir_texts,
    printed,
    sentences_in,
    sr_texts,
    strings_of,
    texts_of,
    whole,
)

from skindx.clinic.fhir import fhir_json
from skindx.diagnosis.case import Case, Patient
from skindx.diagnosis.report import pdf_sheet
from skindx.diagnosis.report.answer_report import report_pdf
from skindx.texts.catalogue import speaking
from skindx.ui.http.answer_rows import csv_line, row_of
from skindx.ui.page.answer_html import result_html

FACTS = Patient(age=54, sex="female", site="back", laterality="left", duration="weeks", skin_type=5)
OWN = re.compile(
    r"Cite .*?\.(?=\s[A-Z]|$)|Creative Commons [^.]*|CC[- ]BY[^.]*|https?://\S+|in situ|SNOMED CT"
    r"|dermoscopic images of moles|digest [0-9a-f]+|bundle [a-z]+ SHA-256 \S+|--details"
)
"""Names and terms that no translation changes."""


@pytest.fixture(scope="module")
def spanish(bundles: dict[str, Path]) -> Answers:  # noqa: F811
    return answers_by(bundles, Case((skin_photo(320, 240),), FACTS, "es"))


@pytest.fixture(scope="module")
def outputs(
    spanish: Answers,
) -> Iterator[dict[str, dict[str, list[str]]]]:
    """Return what each way out says of each bundle's answer; nobody chose a language here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pdf_sheet, "dejavu", lambda: None)  # its letters can be read in the file
        found = {}
        for kind, (said, metrics) in spanish.items():
            with speaking("es"):
                record = said.diagnosis.named().model_dump_json()
            found[kind] = {
                "page": texts_of(result_html(said, metrics)),
                "PDF": [words_of(report_pdf(said, metrics, WHEN))],
                "API": strings_of(without_codes(json.loads(record))),
                "FHIR": fhir_texts(without_displays(fhir_json(said.diagnosis, metrics, WHEN))),
                "SR": sr_texts(said, metrics),
                "CSV": next(csv.reader([csv_line(row_of(said))])),
                "terminal": printed(said),
            }
        yield found


NEUTRAL = {
    *(
        "key",
        "decided_by",
        "urgency",
        "group",
        "split",
        "measured_on",
        "member",
        "sha256",
        "cut_by",
    ),
    *("licence", "citation", "licence_url", "learned_from", "not_for", "purpose", "modality"),
    *("name", "taxonomy", "site", "sex", "laterality", "duration", "label", "review", "backend"),
    *("from_file", "fields", "colours", "confirmed_by", "credit", "page_url", "urgency"),
}
"""Fields of a record that are codes, or are as a bundle and a person gave them."""


def without_codes(record: Any) -> Any:
    if isinstance(record, list):
        return [without_codes(one) for one in record]
    if not isinstance(record, dict):
        return record
    own = {"name"} if "probability" in record and "icd10" in record else set()
    return {key: without_codes(one) for key, one in record.items() if key not in NEUTRAL - own}


def without_displays(bundle: bytes) -> bytes:
    """Leave out codings, whose displays are those of their systems, and of resources codes."""

    def left(value: Any) -> Any:
        if isinstance(value, list):
            return [left(one) for one in value]
        if not isinstance(value, dict):
            return value
        skipped = {"coding", "resourceType", "version", "system", "status", "category", "code"}
        skipped = skipped - {"code"} if isinstance(value.get("code"), dict) else skipped
        skipped |= {"type", "gender", "unit", "category", "valueCode", "language"}
        return {key: left(one) for key, one in value.items() if key not in skipped}

    plain = json.loads(bundle)
    entries = [{"resource": left(entry["resource"])} for entry in plain["entry"]]
    return json.dumps({"entry": entries}).encode()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_no_english_is_left(outputs: dict[str, dict[str, list[str]]], kind: str, way: str) -> None:
    texts = [OWN.sub("", one.replace("\r\n", " ")) for one in outputs[kind][way]]
    if way in ("CSV", "SR", "API"):  # codes, and identifiers of groups
        texts = [
            one for one in texts if not re.fullmatch(r"\w*|next step|(photo|condition) \d", one)
        ]
    found = [left for one in texts for left in english_in(one)]
    assert found == [], "\n".join(found)


def test_a_screen_reader_is_told_the_language_of_a_report(
    spanish: Answers,
) -> None:
    said, metrics = spanish["good"]
    assert b"/Lang (es)" in report_pdf(said, metrics, WHEN)
