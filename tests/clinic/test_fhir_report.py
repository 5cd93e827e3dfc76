"""An answer as a FHIR Bundle: a hand-checked example, the elements of R4, and what never stands."""

import json
import re
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from clinical_answers import WHEN, answered, diagnosed
from hypothesis import given
from hypothesis import strategies as st
from painted_answers import plain

from skindx import __version__
from skindx.clinic.fhir import Attachments, Subject, fhir_json, outcome
from skindx.clinic.narrative import conclusion, conditions, sites
from skindx.core.errors import UserError
from skindx.diagnosis.case import Patient
from skindx.diagnosis.case_actions import ActionKind, CaseAction
from skindx.diagnosis.filing import NOT_FILED, Filing, RecordedDiagnosis
from skindx.diagnosis.photo_checks import Refusal, Refused
from skindx.diagnosis.record import Diagnosis, notice
from skindx.diagnosis.scope import not_judged
from skindx.taxonomy import load_taxonomy, normalise, taxonomy_names
from skindx.texts import catalogue

pytest.importorskip("fhir.resources", reason="fhir.resources is not installed: extra clinic")

EXAMPLE = Path(__file__).parents[1] / "fixtures" / "fhir" / "report.json"
KNOWN = Subject("MRN-1", "1.2.826.0.1.3680043.1", ("1.2.826.0.1.3680043.1.1",))
XHTML = "{http://www.w3.org/1999/xhtml}"


def bundle(diagnosis: Diagnosis, subject: Subject | None = None) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(fhir_json(diagnosis, None, WHEN, subject))
    return made


def resources(bundle: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    every = [entry["resource"] for entry in bundle["entry"]]
    return [one for one in every if one["resourceType"] == kind]


def observation(bundle: dict[str, Any], code: str) -> dict[str, Any]:
    (one,) = (
        one for one in resources(bundle, "Observation") if one["code"]["coding"][0]["code"] == code
    )
    return one


def test_the_example_that_was_checked_by_hand() -> None:
    """Each element of it was read beside R4 (4.0.1); HL7's JSON schema of R4 found no fault."""
    text = json.dumps(bundle(diagnosed(), KNOWN), indent=2, ensure_ascii=False)
    names = dict.fromkeys(re.findall(r"urn:uuid:[0-9a-f-]{36}", text))
    for number, name in enumerate(names, 1):
        text = text.replace(name, f"urn:uuid:{number}")
    text = text.replace(f'"{__version__}"', '"VERSION"')
    assert json.loads(text) == json.loads(EXAMPLE.read_text())


# https://hl7.org/fhir/R4/: every element that a resource or data type of ours may have there.
R4 = {
    "Bundle": "resourceType type timestamp entry",
    "DiagnosticReport": "language extension contained _effectiveDateTime text identifier basedOn "
    "status category code subject encounter effectiveDateTime effectivePeriod issued performer "
    "resultsInterpreter specimen result imagingStudy media conclusion conclusionCode presentedForm",
    "Observation": "identifier basedOn partOf status category code subject focus encounter issued "
    "effectiveDateTime "
    "performer valueQuantity valueCodeableConcept valueString valueBoolean dataAbsentReason "
    "interpretation note bodySite method specimen device referenceRange hasMember derivedFrom "
    "component",
    "Device": "identifier definition udiCarrier status statusReason distinctIdentifier "
    "manufacturer manufactureDate expirationDate lotNumber serialNumber deviceName modelNumber "
    "partNumber type specialization version property patient owner contact location url note "
    "safety parent",
    "Media": "identifier basedOn partOf status type modality view subject encounter "
    "createdDateTime issued operator reasonCode bodySite deviceName device height width frames "
    "duration content note",
    "Organization": "id identifier active type name alias telecom address partOf contact endpoint",
    "Patient": "identifier active name telecom gender birthDate",
    "OperationOutcome": "text issue",
    "ServiceRequest": "identifier basedOn replaces status intent category priority code subject "
    "encounter occurrenceDateTime authoredOn requester performerType performer reasonCode "
    "reasonReference supportingInfo specimen bodySite note patientInstruction",
    "Procedure": "identifier basedOn partOf status statusReason category code subject encounter "
    "performedDateTime recorder asserter performer location reasonCode reasonReference bodySite "
    "outcome report complication followUp note",
}
PARTS = {
    "entry": "fullUrl resource",
    "_effectiveDateTime": "extension",
    "extension": "url valueCode valueReference",
    "valueReference": "reference type identifier display",
    "text": "status div",
    "coding": "system version code display userSelected",
    "component": "code valueQuantity valueCodeableConcept valueString valueRange dataAbsentReason "
    "interpretation referenceRange",
    "valueQuantity": "value comparator unit system code",
    "valueRange": "low high",
    "low": "value unit system code",
    "high": "value unit system code",
    "identifier": "use type system value period assigner",
    "deviceName": "name type",
    "version": "type component value",
    "note": "authorReference authorString time text",
    "content": "contentType language data url size hash title creation",
    "presentedForm": "contentType language data url size hash title creation",
    "issue": "severity code details diagnostics location expression",
    "media": "comment link",
    **dict.fromkeys(
        ("subject", "device", "derivedFrom", "result", "link", "focus", "reasonReference"),
        "reference",
    ),
    **dict.fromkeys(("performer", "requester", "recorder"), "reference display"),
    "imagingStudy": "reference identifier",
    **dict.fromkeys(
        ("code", "category", "valueCodeableConcept", "dataAbsentReason", "interpretation", "type",
         "bodySite", "method", "conclusionCode", "details", "statusReason"), "coding text"),
}  # fmt: skip


def unknown_to_r4(value: Any, name: str = "") -> list[str]:
    """Return the elements that R4 does not have."""
    if isinstance(value, list):
        return [wrong for one in value for wrong in unknown_to_r4(one, name)]
    if not isinstance(value, dict):
        return []
    allowed = R4.get(value.get("resourceType", ""), PARTS.get(name, "")).split()
    wrong = [f"{name}.{key}" for key in value if key not in (*allowed, "resourceType")]
    return wrong + [one for key, part in value.items() for one in unknown_to_r4(part, key)]


@pytest.mark.parametrize(
    "diagnosis", [diagnosed(), diagnosed(photos=3), diagnosed(abstained=True), plain().diagnosis]
)
def test_every_element_is_one_of_r4_and_every_reference_leads_somewhere(
    diagnosis: Diagnosis,
) -> None:
    made = bundle(diagnosis, KNOWN)
    assert unknown_to_r4(made) == []
    urls = {entry["fullUrl"] for entry in made["entry"]}
    assert len(urls) == len(made["entry"])
    assert set(re.findall(r'"reference": "([^"]+)"', json.dumps(made))) <= urls | {"#software"}
    assert unknown_to_r4({"resourceType": "Observation", "value": 1}) == [".value"]


def test_what_was_done_stands_with_its_day_and_its_state() -> None:
    def entry(kind: str, day: int, *given: Any, **more: Any) -> CaseAction:
        return CaseAction(ActionKind(kind), date(2026, 11, day), WHEN, *given, **more)

    entries = (
        entry("referred", 3, "Dr Vogt's clinic", "anna", "Dr A. Keller"),
        entry("absent", 4),
        entry("excised", 6, "4 mm margin", "anna"),
        entry("awaited", 6),
        entry("known", 9),
        entry("awaited", 12),
        entry("biopsied", 2, struck=WHEN, struck_by="anna"),
        entry("closed", 13, "healed"),
    )
    filing = Filing("P-017", "arm", kept=True, actions=entries)
    patient = Patient(site="arm", laterality="left")
    answer = diagnosed()
    made = json.loads(
        fhir_json(answer.model_copy(update={"patient": patient}), None, WHEN, filing=filing)
    )
    assert unknown_to_r4(made) == []
    urls = {one["fullUrl"] for one in made["entry"]}
    assert set(re.findall(r'"reference": "([^"]+)"', json.dumps(made))) <= urls | {"#software"}

    def told(kind: str, day: str) -> list[tuple[str, str, str]]:
        return [
            (one["code"]["coding"][0]["code"].removeprefix("action-"), one["status"], one[day])
            for one in resources(made, kind)
            if "action-" in one["code"]["coding"][0]["code"]
        ]

    assert told("ServiceRequest", "authoredOn") == [
        ("referred", "active", "2026-11-03"),
        ("awaited", "completed", "2026-11-06"),
        ("awaited", "active", "2026-11-12"),
    ]
    assert told("Procedure", "performedDateTime") == [
        ("biopsied", "entered-in-error", "2026-11-02"),
        ("absent", "not-done", "2026-11-04"),
        ("excised", "completed", "2026-11-06"),
    ]
    assert told("Observation", "effectiveDateTime") == [
        ("known", "final", "2026-11-09"),
        ("closed", "final", "2026-11-13"),
    ]
    referral, excision = resources(made, "ServiceRequest")[0], resources(made, "Procedure")[-1]
    assert referral["performer"] == [{"display": "Dr Vogt's clinic"}]
    assert referral["requester"] == {"display": "Dr A. Keller"}
    assert excision["recorder"] == {"display": "login anna"}
    assert excision["bodySite"][0]["text"] == "arm, left side"
    assert entries[2].words in excision["note"][0]["text"]
    (report,) = resources(made, "DiagnosticReport")
    assert "Struck out on" in report["text"]["div"]
    assert not resources(bundle(answer, KNOWN), "Procedure")


def test_a_place_has_its_code_and_its_side_in_words() -> None:
    patient = Patient(site="lip", laterality="left")
    made = bundle(diagnosed().model_copy(update={"patient": patient}))
    site = observation(made, "next-step")["bodySite"]
    assert site["coding"][0]["code"] == "88089004"
    assert site["text"] == "lip, left side"
    facts = observation(made, "given-facts")["component"]
    assert {"code": {"text": "side of the body"}, "valueString": "left"} in facts


def test_every_output_is_preliminary_and_says_first_what_it_is_not() -> None:
    for diagnosis in (diagnosed(), diagnosed(abstained=True)):
        made = bundle(diagnosis)
        (report,) = resources(made, "DiagnosticReport")
        assert made["entry"][0]["resource"] == report
        states = {report["status"], *(one["status"] for one in resources(made, "Observation"))}
        assert states == {"preliminary"}
        assert report["text"]["div"].index(notice()) < report["text"]["div"].index("Melanoma")
        assert catalogue.text("cannot_rule_out") in report["text"]["div"]
        assert catalogue.text("notice_tool") in report["conclusion"]
        assert catalogue.text("cannot_rule_out") in report["conclusion"]


def test_the_risk_comes_with_both_errors_and_their_intervals() -> None:
    risk = observation(bundle(diagnosed()), "urgent-risk")
    parts = {one["code"]["text"]: one for one in risk["component"]}
    value = {
        name: one["valueQuantity"]["value"] for name, one in parts.items() if "valueQuantity" in one
    }
    assert risk["valueQuantity"]["value"] == 0.08
    assert value["urgent conditions missed by the advice, test images"] == 0.04
    assert value["others called urgent by the advice, test images"] == 0.3
    missed = parts[
        "urgent conditions missed by the advice, test images, 95 % interval, 100 images"
    ]["valueRange"]
    assert (missed["low"]["value"], missed["high"]["value"]) == (0.01, 0.09)
    assert risk["interpretation"][0]["coding"][0]["code"] == "A"
    below = observation(bundle(diagnosed(risk=0.01)), "urgent-risk")
    assert below["interpretation"] == [{"text": "below the threshold, which rules out no disease"}]


def test_an_abstention_names_no_condition_and_reassures_by_no_low_risk() -> None:
    diagnosis = diagnosed(abstained=True, risk=0.01)
    made = bundle(diagnosis)
    (report,) = resources(made, "DiagnosticReport")
    assert "conclusionCode" not in report
    assert diagnosis.abstained in report["conclusion"]
    assert "not an answer" in report["text"]["div"]
    for code in ("conditions", "urgent-risk"):
        one = observation(made, code)
        assert one["dataAbsentReason"]["text"] == diagnosis.abstained
        assert not {"component", "valueQuantity", "interpretation"} & set(one)
    warning = observation(bundle(diagnosed(abstained=True, risk=0.4)), "urgent-risk")
    assert warning["valueQuantity"]["value"] == 0.4
    without = diagnosis.model_copy(update={"urgent_risk": None, "no_urgent_risk": "It has none."})
    absent = observation(bundle(without), "urgent-risk")["dataAbsentReason"]
    assert (absent["coding"][0]["code"], absent["text"]) == ("unsupported", "It has none.")


SAID = diagnosed()
NEVUS = RecordedDiagnosis("Nevus (mole)", "D22.9", "histopathology", who="ann", when=WHEN)


def report_on(diagnosis: Diagnosis, filing: Filing = NOT_FILED) -> dict[str, Any]:
    """Return the report, which the validator took, by what it says."""
    made = json.loads(fhir_json(diagnosis, None, WHEN, filing=filing))
    assert unknown_to_r4(made) == []
    report: dict[str, Any] = made["entry"][0]["resource"]
    return report


def test_several_conditions_are_a_differential_with_urgent_ones_first_and_no_conclusion() -> None:
    made = bundle(diagnosed())
    assert "conclusionCode" not in made["entry"][0]["resource"]
    parts = observation(made, "conditions")["component"]
    shares = {one["code"]["text"]: one["valueQuantity"]["value"] for one in parts}
    assert next(iter(shares)) == "Melanoma"  # urgent with 8 %, before what is soon with 46 %
    assert shares["Actinic keratosis"] == 0.46
    inside = [one["code"]["text"] for one in parts if "interpretation" in one]
    assert inside == ["Actinic keratosis", "Basal cell carcinoma", "Dermatofibroma"]
    first, *others = diagnosed().candidates
    alone = diagnosed().model_copy(
        update={
            "candidates": (
                first.model_copy(update={"in_set": True}),
                *(one.model_copy(update={"in_set": False}) for one in others),
            )
        }
    )
    (code,) = report_on(alone)["conclusionCode"]
    assert (code["text"], code["coding"][0]["code"]) == ("Actinic keratosis", "L57.0")
    without = alone.model_copy(
        update={"candidates": (first.model_copy(update={"in_set": False}),), "promise": None}
    )
    assert "conclusionCode" not in report_on(without)


def test_a_report_names_a_software_as_performer_and_that_the_photos_have_no_date() -> None:
    report = report_on(diagnosed())
    (performer,) = report["contained"]
    assert report["performer"] == [{"reference": f"#{performer['id']}"}]
    assert performer["resourceType"] == "Organization"
    assert "no person" in performer["name"]
    (absent,) = report["_effectiveDateTime"]["extension"]
    assert absent["valueCode"] == "unknown"


def test_a_report_has_the_date_of_its_photo() -> None:
    (photo,) = SAID.photos
    for taken in ("2026-05-01", "2026-05-01T10:30:00+02:00"):
        dated = SAID.model_copy(update={"photos": (photo.model_copy(update={"taken": taken}),)})
        report = report_on(dated)
        assert report["effectiveDateTime"] == taken
        assert "_effectiveDateTime" not in report
        (media,) = resources(bundle(dated), "Media")
        assert media["createdDateTime"] == taken


def test_a_diagnosis_of_a_clinician_amends_the_report() -> None:
    filing = Filing("P-017", "arm", kept=True, recorded=NEVUS)
    report = report_on(diagnosed(), filing)
    assert report["status"] == "amended"
    assert report["conclusion"].startswith(
        "A clinician recorded Nevus (mole) (D22.9), confirmed by histopathology."
    )
    (code,) = report["conclusionCode"]
    assert code["coding"][0]["code"] == "D22.9"
    for said in ("This report is amended", "Recorded by: login ann.",
                 "What the software had advised"):  # fmt: skip
        assert said in report["text"]["div"]
    made = json.loads(fhir_json(diagnosed(), None, WHEN, filing=filing))
    recorded = observation(made, "recorded-diagnosis")
    assert recorded["status"] == "final"
    assert observation(made, "conditions")["status"] == "amended"
    assert observation(made, "photo-valid")["status"] == "amended"
    (patient,) = resources(made, "Patient")
    assert patient["identifier"] == [{"value": "P-017"}]
    opinion = replace(NEVUS, confirmed_by="", opinion=True)
    said = report_on(diagnosed(), Filing(recorded=opinion))
    assert said["status"] == "amended"
    assert "conclusionCode" not in said
    assert "clinical opinion, not confirmed" in said["conclusion"]


def test_a_corrected_report_replaces_the_version_before_it() -> None:
    melanoma = RecordedDiagnosis(
        "Melanoma", "C43.9", "histopathology", who="ann", when=WHEN + timedelta(seconds=191),
        replaced=WHEN + timedelta(seconds=195), replaced_by="ben",
    )  # fmt: skip
    nevus = replace(NEVUS, who="ben", when=melanoma.replaced)
    filings = [
        Filing("P-017"),
        Filing("P-017", recorded=replace(melanoma, replaced=None, replaced_by="")),
        Filing("P-017", recorded=nevus, earlier=(melanoma,)),
        Filing("P-017", earlier=(melanoma, replace(nevus, replaced=WHEN + timedelta(minutes=9)))),
    ]
    reports = [report_on(diagnosed(), filing) for filing in filings]
    answers, names = zip(
        *([one["value"] for one in each["identifier"]] for each in reports), strict=True
    )
    assert len(set(answers)) == 1
    assert len(set(names)) == 4
    assert "extension" not in reports[0]
    for before, report in zip(names, reports[1:], strict=False):
        (extension,) = report["extension"]
        assert extension["valueReference"]["identifier"]["value"] == before
        assert unknown_to_r4(report) == []
    assert [one["status"] for one in reports] == ["preliminary", *["amended"] * 3]
    assert reports[2]["issued"] == "2026-11-26T12:03:15Z"
    for said in ("It replaces the report of 26 November 2026, 12:03:11 UTC.",
                 "Recorded by: login ben.",
                 "This replaces Melanoma (C43.9), confirmed by histopathology, so check the "
                 "pathology report.",
                 "Diagnosis before: Melanoma (C43.9), confirmed by histopathology, recorded 26 "
                 "November 2026, 12:03:11 UTC, by login ann."):  # fmt: skip
        assert said in reports[2]["text"]["div"]
    assert "took the recorded diagnosis back" in reports[3]["text"]["div"]
    assert "so check the pathology report." in reports[3]["text"]["div"]
    assert "pathology report" not in reports[1]["text"]["div"]
    assert "conclusionCode" not in reports[3]
    unsaid = replace(nevus, confirmed_by="")
    assert (
        "Nevus (mole) (D22.9), basis not stated."
        in report_on(diagnosed(), Filing(recorded=unsaid))["conclusion"]
    )


@given(
    names=st.lists(st.text("abc ", min_size=1, max_size=200), min_size=1, max_size=9),
    urgency=st.sampled_from(["advice_urgent", "advice_soon_without_time", "advice_routine"]),
    abstained=st.booleans(),
    recorded=st.sampled_from([None, NEVUS, RecordedDiagnosis("x " * 100, opinion=True)]),
)
def test_a_conclusion_has_at_most_sixty_words(
    names: list[str], urgency: str, abstained: bool, recorded: RecordedDiagnosis | None
) -> None:
    first = SAID.candidates[0]
    candidates = tuple(
        first.model_copy(update={"key": str(n), "name": name, "in_set": True})
        for n, name in enumerate(names)
    )
    step = SAID.next_step.model_copy(update={"advice": catalogue.text(urgency)})
    many = catalogue.text("abstain_many", possible=7, classes=9)
    why = catalogue.joined(many, catalogue.text("abstain_many_help"))
    diagnosis = SAID.model_copy(
        update={
            "candidates": candidates, "next_step": step, "abstained": why if abstained else "",
        }
    )  # fmt: skip
    said = conclusion(diagnosis, Filing(recorded=recorded))
    assert len(said.split()) <= 60
    confirmed = recorded is NEVUS
    assert (catalogue.text(urgency) in said) != confirmed  # no two instructions at once
    assert ("Before that, the software had advised" in said) == confirmed
    assert catalogue.text("cannot_rule_out") in said


def test_nobody_is_named_who_was_not_given() -> None:
    made = bundle(diagnosed())
    assert resources(made, "Patient") == []
    assert '"subject"' not in json.dumps(made)
    (patient,) = resources(bundle(diagnosed(), KNOWN), "Patient")
    assert patient == {
        "resourceType": "Patient", "identifier": [{"value": "MRN-1"}], "gender": "female"
    }  # fmt: skip


def test_text_of_a_bundle_stays_text() -> None:
    made = bundle(plain(name="<script>alert(1)</script>\x07&").diagnosis)
    (report,) = resources(made, "DiagnosticReport")
    div = ElementTree.fromstring(report["text"]["div"])
    assert {one.tag for one in div.iter()} == {f"{XHTML}{tag}" for tag in ("div", "h2", "p")}
    assert "<script>alert(1)</script>\N{REPLACEMENT CHARACTER}&" in "".join(div.itertext())
    assert "\x07" not in json.dumps(made, ensure_ascii=False)


def test_each_photo_has_its_validity_and_may_come_along() -> None:
    answer = answered(photos=2)
    attached = Attachments([view.jpeg for view in answer.views], b"%PDF")
    made = json.loads(fhir_json(answer.diagnosis, None, WHEN, attached=attached))
    valid = [one for one in resources(made, "Observation") if "valueBoolean" in one]
    links = [
        entry["fullUrl"] for entry in made["entry"] if entry["resource"]["resourceType"] == "Media"
    ]
    assert [one["derivedFrom"] for one in valid] == [[{"reference": link}] for link in links]
    assert valid[1]["note"][0] == {"text": "A little dark; daylight shows more."}
    assert all(media["content"]["data"] for media in resources(made, "Media"))
    (report,) = resources(made, "DiagnosticReport")
    assert report["presentedForm"][0]["contentType"] == "application/pdf"


def test_an_error_is_an_outcome_with_an_issue_a_photo() -> None:
    from fhir.resources.R4B.operationoutcome import OperationOutcome

    refused = Refused.from_photos(
        [Refusal(1, "blur", "Too blurred."), Refusal(0, "light", "Too dark.")], 2
    )
    for made in (outcome(422, str(refused), refused), outcome(503, "Busy."), outcome(406, "No.")):
        OperationOutcome.model_validate(made)
        assert unknown_to_r4(made) == []
    issues = outcome(422, str(refused), refused)["issue"]
    assert [(one["details"]["text"], one["diagnostics"]) for one in issues] == [
        (f"Too dark. {not_judged()}", "Photo 1"), (f"Too blurred. {not_judged()}", "Photo 2")
    ]  # fmt: skip


def test_without_the_library_it_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skindx.core.machine.missing_modules", lambda *names: list(names))
    with pytest.raises(UserError, match=r"FHIR report needs fhir, .*\[clinic\]"):
        fhir_json(diagnosed(), None, WHEN)


def check_digit_holds(code: str) -> bool:
    """Verhoeff's scheme, which ends every identifier of SNOMED CT, over the dihedral group D5."""

    def times(a: int, b: int) -> int:
        turned = (a + b if a < 5 else a - b) % 5
        return turned if (a < 5) == (b < 5) else 5 + turned

    step = [1, 5, 7, 6, 2, 8, 3, 0, 9, 4]
    total = 0
    for place, digit in enumerate(reversed(code)):
        moved = int(digit)
        for _ in range(place % 8):
            moved = step[moved]
        total = times(total, moved)
    return total == 0


def test_codes_are_whole_and_of_classes_that_there_are() -> None:
    concepts = pytest.importorskip("pydicom.sr._concepts_dict").concepts["SCT"]
    dicom = {code: meaning for rows in concepts.values() for code, (meaning, _) in rows.items()}
    every = [*conditions().values(), *sites().values()]
    assert all(check_digit_holds(concept.code) for concept in every)
    assert not check_digit_holds("254701008")
    for concept in every:
        if concept.code in dicom and "(" not in dicom[concept.code]:
            assert concept.meaning == dicom[concept.code]
    names = {
        normalise(one.name) for name in taxonomy_names() for one in load_taxonomy(name).classes
    }
    assert set(conditions()) <= names | {"nevus"}
    assert not {normalise(name) for name in ("Benign keratosis", "Vascular lesion")} & set(
        conditions()
    )
