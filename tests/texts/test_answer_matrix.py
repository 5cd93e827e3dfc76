"""Six bundles, seven ways out: the figures are those of the rows, the sentences are short.

One photo is answered by a bundle without an urgent class, without a threshold, of synthetic images,
that is not useful yet, by a good one, and by a good one whose photos have drifted away from it.
"""

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from clinical_answers import WHEN
from forged_bundle import change_index, copy_bundle, forge
from pdf_words import words_of
from rich.console import Console
from skin_photo import skin_photo
from test_catalogue import WORDS
from tiny_bundle import USE, pack_tiny
from whole_evaluation import write_whole_evaluation

from skindx.clinic.fhir import fhir_json
from skindx.diagnosis import answer_texts
from skindx.diagnosis.case import Case
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import CaseAnswer
from skindx.diagnosis.report import pdf_sheet
from skindx.diagnosis.report.answer_report import print_diagnosis, report_pdf
from skindx.metrics.share_intervals import proportion_interval
from skindx.models.bundle.bundle_index import CALIBRATION_CLASSES
from skindx.models.conformal import Share
from skindx.models.urgent_risk import RiskLevel, UrgentRiskRule, not_useful
from skindx.taxonomy import load_taxonomy
from skindx.texts.catalogue import speaking, text
from skindx.ui.http.answer_rows import csv_line, row_of
from skindx.ui.page.answer_html import result_html

KINDS = ("no urgent class", "no threshold", "synthetic", "not useful", "good", "drifted")
WAYS = ("page", "PDF", "API", "FHIR", "SR", "CSV", "terminal")
IN_FULL = ("page", "PDF", "FHIR", "SR")
"""Ways out that have the intervals and the predictive values too."""
OTHERS_URGENT = Share(value=0.86, low=0.8, high=0.9, pictures=200)


@dataclass(frozen=True)
class Counts:
    """What the rows of the evaluation say of the advice, counted here."""

    urgent: int
    missed: int
    refused: int
    others: int
    raised: int

    def predictive(self, prevalence: float) -> str:
        missed, raised = self.missed / self.urgent, self.raised / self.others
        right, rest_right = prevalence * (1 - missed), (1 - prevalence) * (1 - raised)
        ppv = right / (right + (1 - prevalence) * raised)
        among_rest = prevalence * missed / (rest_right + prevalence * missed)
        return text("predictive", prevalence=prevalence, ppv=ppv, missed=among_rest)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("matrix")
    write_whole_evaluation(folder, draws=20)
    return folder


@pytest.fixture(scope="module")
def counts(evaluated: Path) -> Counts:
    with (evaluated / "predictions.csv").open() as table:
        rows = list(csv.DictReader(table))
    refused = [row["other_modality"] == "True" or float(row["ood_p_value"]) <= 0.02 for row in rows]
    called = [row["next_step"] == "urgent" for row in rows]
    urgent = [row["label"] == "melanoma" for row in rows]
    advised = [call and not gone for call, gone in zip(called, refused, strict=True)]
    return Counts(
        urgent=sum(urgent),
        missed=sum(of and not call for of, call in zip(urgent, advised, strict=True)),
        refused=sum(of and gone for of, gone in zip(urgent, refused, strict=True)),
        others=len(rows) - sum(urgent),
        raised=sum(call and not of for of, call in zip(urgent, advised, strict=True)),
    )


@pytest.fixture(scope="module")
def bundles(
    whole_bundle: Path, evaluated: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Return the bundle of each kind; the answers of all are sure, by a low temperature."""
    figures = json.loads((evaluated / "metrics.json").read_text())
    columns = tuple(
        json.loads((whole_bundle / "bundle.json").read_text())["conformal"]["urgent_columns"]
    )
    level = RiskLevel(miss_rate=0.05, thresholds={"all": 0.2})
    rule = UrgentRiskRule(urgent_columns=columns, lesions={"all": 57}, levels=(level,))
    mix = {CALIBRATION_CLASSES: {one.key: 20 for one in load_taxonomy("isic9").classes}}
    found = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp("bundle")
        told = dict(figures)
        if kind == "no urgent class":
            taxonomy = load_taxonomy("isic9")
            harmless = [one for one in taxonomy.classes if one.urgency != "urgent"]
            classes = {"classes": tuple(harmless)}
            found[kind] = pack_tiny(
                folder / "bundle", taxonomy=taxonomy.model_copy(update=classes)
            ).path
            continue
        bundle = copy_bundle(folder, whole_bundle)
        for key, value in (
            ("ood", None),
            ("temperature", 0.02),
            ("use", USE.model_dump(mode="json")),
            ("provenance", mix),
        ):
            change_index(bundle, (key,), value)
        if kind == "no threshold":
            told["urgent_risk"] = None
        else:
            change_index(bundle, ("urgent_risk",), rule.model_dump(mode="json"))
        if kind == "synthetic":
            change_index(bundle, ("images",), {"painted": "all"})
        if kind == "not useful":
            told["not_useful"] = list(
                not_useful(
                    others_urgent=OTHERS_URGENT, images={"Melanoma": 20}, urgent=["Melanoma"]
                )
            )
        forge(bundle, "metrics.json", json.dumps(told).encode())
        found[kind] = bundle
    return found


Answers = dict[str, tuple[CaseAnswer, dict[str, Any] | None]]
"""The answer of each kind of bundle, and the bundle's metrics."""


def answers_by(bundles: dict[str, Path], case: Case) -> Answers:
    """Return each bundle's answer to a case; that of the drifted one abstains."""
    found: Answers = {}
    for kind, bundle in bundles.items():
        predictor = Predictor.load(bundle)
        found[kind] = answer(predictor, case), predictor.metrics
    said, metrics = found["drifted"]
    with speaking(case.language):
        unlike = {"abstained": text("abstain_unlike", n=1), "familiarity": 0.03}
    found["drifted"] = replace(said, diagnosis=said.diagnosis.model_copy(update=unlike)), metrics
    return found


@pytest.fixture(scope="module")
def answers(bundles: dict[str, Path]) -> Answers:
    return answers_by(bundles, Case((skin_photo(320, 240),)))


@pytest.fixture(scope="module")
def outputs(
    answers: Answers,
) -> Iterator[dict[str, dict[str, list[str]]]]:
    """Return what each way out says of each bundle's answer, a text an entry."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pdf_sheet, "dejavu", lambda: None)  # its letters can be read in the file
        yield {
            kind: {
                "page": texts_of(result_html(said, metrics)),
                "PDF": [words_of(report_pdf(said, metrics, WHEN))],
                "API": strings_of(json.loads(said.diagnosis.model_dump_json())),
                "FHIR": fhir_texts(fhir_json(said.diagnosis, metrics, WHEN, None)),
                "SR": sr_texts(said, metrics),
                "CSV": next(csv.reader([csv_line(row_of(said))])),
                "terminal": printed(said),
            }
            for kind, (said, metrics) in answers.items()
        }


class Blocks(HTMLParser):
    """The texts of an HTML page, one a block."""

    def __init__(self) -> None:
        super().__init__()
        self.found = [""]

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.found.append("")

    def handle_endtag(self, tag: str) -> None:
        self.found.append("")

    def handle_data(self, data: str) -> None:
        self.found[-1] += data


def texts_of(html: str) -> list[str]:
    parser = Blocks()
    parser.feed(html)
    return [" ".join(block.split()) for block in parser.found if block.strip()]


def strings_of(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [one for part in parts for one in strings_of(part)]


def fhir_texts(bundle: bytes) -> list[str]:
    report = json.loads(bundle)["entry"]
    texts = [text for entry in report for text in strings_of(entry["resource"])]
    return [part for one in texts for part in (texts_of(one) if one.startswith("<div") else [one])]


def sr_texts(said: CaseAnswer, metrics: dict[str, Any] | None) -> list[str]:
    pytest.importorskip("highdicom", reason="highdicom is not installed: extra clinic")
    from pydicom import dcmread

    from skindx.clinic.structured_report import structured_report
    from skindx.imaging.dicom_facts import DicomFacts, DicomIdentity

    identity = DicomIdentity(
        patient_id="4711",
        study_uid="1.2.3",
        series_uid="1.2.3.4",
        instance_uid="1.2.3.4.5",
        class_uid="1.2.840.10008.5.1.4.1.1.77.1.7",
    )
    facts = DicomFacts("dermoscopy", "DMS", 320, 240, identity=identity)
    report = dcmread(io.BytesIO(structured_report(said.diagnosis, [facts], metrics, WHEN)))
    return [str(element.value) for element in report.iterall() if element.keyword == "TextValue"]


def printed(said: CaseAnswer) -> list[str]:
    terminal = StringIO()
    print_diagnosis(said.diagnosis, Console(file=terminal, width=2000))
    return [" ".join(line.split()) for line in terminal.getvalue().splitlines() if line.strip()]


_SHARES = re.compile(r"[A-Z][a-z' ]+(\([a-z]+\) )?[<>]? ?\d+ %(, | and )")
"""Names with shares, of which a sentence lists five."""


def whole(texts: list[str]) -> str:
    return " ".join(" ".join(texts).replace("\xa0", " ").split())


def sentences_in(part: str) -> list[str]:
    """Return the sentences of a text, without headings, labels and lists of names."""
    found = re.split(r"(?<=[a-z0-9%)\]][.!?])\s+(?=[A-Z]|skindx)", part)
    return [one for one in found if one.rstrip().endswith(".")]


@pytest.mark.parametrize("kind", KINDS)
def test_each_sentence_is_one_and_short_and_has_the_words_of_the_glossary(
    outputs: dict[str, dict[str, list[str]]], answers: Any, kind: str
) -> None:
    known = answers[kind][0].diagnosis
    lists = [", ".join(names[:-1]) for names in (known.known, known.unknown_urgent)]
    for way in WAYS:
        seen = whole(outputs[kind][way]).lower()
        assert [one for one in WORDS if re.search(rf"\b{one}", seen)] == [], way
        if way == "PDF":  # its tables and its lines have no ends
            continue
        for sentence in (one for part in outputs[kind][way] for one in sentences_in(part)):
            plain = _SHARES.sub("", sentence)
            for names in filter(None, lists):
                plain = plain.replace(names, "names")
            plain = re.sub(r"\([^)]*\)|(?<=\d) %", "", plain)
            assert len(plain.split()) <= 25, (way, sentence)
            assert not re.search(r";|[a-z] [–—-] [a-z]", plain), (way, sentence)


@pytest.mark.parametrize("kind", ["no threshold", "synthetic", "not useful", "good", "drifted"])
def test_both_errors_are_those_of_the_rows(
    outputs: dict[str, dict[str, list[str]]], answers: Any, counts: Counts, kind: str
) -> None:
    errors = answers[kind][0].diagnosis.advice_errors
    raised = text("errors_raised", raised=counts.raised / counts.others)
    share = counts.missed / counts.urgent
    only = {"only": errors.only} if errors.only else {}
    missed = text("errors_missed" + "_only" * bool(only), missed=share, split="test", **only)
    if counts.missed < answer_texts.FEW:
        high = errors.missed.high
        assert high == pytest.approx(proportion_interval(share, counts.urgent).high, abs=0.2)
        missed = text(
            "errors_missed_few", missed=counts.missed, images=counts.urgent, most=high, split="test"
        )
    for way in ("page", "PDF", "FHIR", "SR", "terminal"):
        seen = whole(outputs[kind][way])
        assert missed in seen, way
        assert raised in seen, way
    said = json.loads(answers[kind][0].diagnosis.model_dump_json())["advice_errors"]
    assert said["missed"]["value"] == pytest.approx(share)
    assert said["raised"]["value"] == pytest.approx(counts.raised / counts.others)
    assert said["refused"] == counts.refused
    if kind == "drifted":
        assert text("errors_unlike") in whole(outputs[kind]["page"])


def test_predictive_values_stand_at_one_percent_beside_the_mix_of_the_test(
    outputs: dict[str, dict[str, list[str]]], counts: Counts
) -> None:
    mix = counts.urgent / (counts.urgent + counts.others)
    for prevalence in (0.01, mix):
        said = counts.predictive(prevalence)
        for way in IN_FULL:
            assert said in whole(outputs["good"][way]), way


def test_predictive_values_stand_at_the_prevalence_that_a_server_was_told(
    bundles: dict[str, Path], counts: Counts, tmp_path: Path
) -> None:
    keys = [one.key for one in load_taxonomy("isic9").classes]
    shares = dict.fromkeys(keys, 0.96 / 7) | {"Melanoma": 0.03, "Squamous_Cell_Carcinoma": 0.01}
    (tmp_path / "mix.json").write_text(json.dumps(shares))
    predictor = Predictor.load(bundles["good"], prevalence=tmp_path / "mix.json")
    said = answer(predictor, Case((skin_photo(320, 240),)))
    errors = said.diagnosis.advice_errors
    assert errors is not None
    assert errors.values[0].prevalence == pytest.approx(0.04)
    assert counts.predictive(0.04) in whole(texts_of(result_html(said, predictor.metrics)))


def test_a_bundle_that_is_not_useful_yet_says_so_first(
    outputs: dict[str, dict[str, list[str]]], answers: Any
) -> None:
    advice = answers["not useful"][0].diagnosis.next_step.advice
    for way in ("page", "PDF", "FHIR", "SR", "terminal"):
        seen = whole(outputs["not useful"][way])
        assert 0 <= seen.find(text("not_useful_yet")) < seen.find(advice), way
        assert text("not_useful_yet") not in whole(outputs["good"][way])


@pytest.mark.parametrize(
    ("kind", "key"),
    [("no urgent class", "no_urgent_classes"), ("synthetic", "synthetic_all")],
)
def test_what_a_reader_must_know_first_stands_before_the_advice(
    outputs: dict[str, dict[str, list[str]]], answers: Any, kind: str, key: str
) -> None:
    advice = answers[kind][0].diagnosis.next_step.advice
    for way in ("page", "PDF", "FHIR", "SR", "terminal"):
        seen = whole(outputs[kind][way])
        assert 0 <= seen.find(text(key)) < seen.find(advice), way


def test_without_a_measured_advice_its_errors_are_not_known(
    outputs: dict[str, dict[str, list[str]]],
) -> None:
    for way in ("page", "PDF", "FHIR", "SR", "terminal"):
        seen = whole(outputs["no urgent class"][way])
        assert text("errors_unmeasured") in seen, way
        assert "of 100" not in seen.replace(text("errors_unmeasured"), ""), way
