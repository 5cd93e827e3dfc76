"""A person may say how photos were taken that the check of modality alone refuses."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pdf_words import words_of
from rich.console import Console
from skin_photo import skin_photo
from some_features import Alike
from tiny_bundle import pack_tiny

from skindx.clinic import narrative
from skindx.core.errors import UserError
from skindx.diagnosis import decision_texts
from skindx.diagnosis.answer_texts import modality_warning, warnings
from skindx.diagnosis.case import Case, Patient
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.predictor import Predictor
from skindx.diagnosis.record import CaseAnswer, Diagnosis, NextStep
from skindx.diagnosis.report import pdf_sheet
from skindx.diagnosis.report.answer_report import print_diagnosis, report_pdf
from skindx.diagnosis.report.record_tables import advice_table
from skindx.diagnosis.scope import giving_no_time, not_judged, shown_tier
from skindx.imaging.photo_gates import ModalityCheck
from skindx.models.ood.ood_check import OodCheck
from skindx.taxonomy import Urgency, advice_for, load_taxonomy
from skindx.texts.catalogue import text
from skindx.ui.page.form_html import unanswered_shown

SOUND, AGAIN, BLURRED = skin_photo(), skin_photo(seed=4), skin_photo(blur=9)
SHARE = {"value": 1.0, "low": 0.48, "high": 1.0}
ALONE = "(modality alone)"


def checked(predictor: Predictor, threshold: float = -1e9, kind: str = "dermoscopic") -> Predictor:
    """Return the predictor with a check of modality; at the least threshold it refuses all."""
    modality = ModalityCheck.model_validate({"kind": kind, "threshold": threshold, "images": 100})
    spec = predictor.bundle.spec.model_copy(update={"modality": modality})
    return replace(predictor, bundle=replace(predictor.bundle, spec=spec))


@pytest.fixture(scope="module")
def plain(tiny_bundle: Path) -> Predictor:
    return Predictor.load(tiny_bundle)


@pytest.fixture(scope="module")
def refusing(plain: Predictor) -> Predictor:
    return checked(plain)


def refused(predictor: Predictor, *photos: bytes, **said: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        answer(predictor, Case(photos, **said))
    return caught.value


def said_so(predictor: Predictor, *photos: bytes, kind: str = "dermoscopic") -> CaseAnswer:
    return answer(predictor, Case(photos, modality=kind))  # type: ignore[arg-type]


def test_a_refusal_by_the_modality_alone_says_how_one_gets_an_answer_and_not_to_wait(
    refusing: Predictor,
) -> None:
    error = refused(refusing, SOUND)
    assert (error.gate, error.unless) == ("modality", "dermoscopic")
    assert str(error).endswith(not_judged())
    assert error.refusals[0].text == str(error)
    shown = unanswered_shown(Patient(), error.unless)
    assert shown["advice"] == text("advice_now")
    assert shown["button"] == text("said_dermoscopic_do")
    assert text("said_hazard_dermoscopic") in shown["hazard"]
    assert "unless" not in unanswered_shown(Patient())
    grew = refused(refusing, SOUND, patient=Patient(grew="yes"))
    assert grew.unless
    assert "within days, because it grows" in str(grew).split(". ")[0]
    assert "within days, because it grows" in grew.refusals[0].text


def test_of_two_gates_both_are_named_the_modality_first_and_nothing_is_offered(
    refusing: Predictor,
) -> None:
    strange = replace(refusing, ood=OodCheck((Alike(),), np.full((99, 1), -np.inf)))
    error = refused(strange, SOUND)
    assert (error.gate, error.unless) == ("modality", "")
    message = error.refusals[0].message
    assert message.index(text("refused_not_dermoscopic")) < message.index(
        text("refused_unlike_too")
    )
    assert refused(strange, SOUND, modality="dermoscopic").gate == "unfamiliar"


@pytest.mark.parametrize("photos", [(BLURRED,), (SOUND, BLURRED), (skin_photo(60, 60),)])
def test_no_other_gate_is_passed(refusing: Predictor, photos: tuple[bytes, ...]) -> None:
    assert not refused(refusing, *photos).unless
    assert refused(refusing, *photos, modality="dermoscopic").gate in ("blur", "size")


def test_the_answer_is_marked_and_never_reassures(refusing: Predictor, plain: Predictor) -> None:
    diagnosis = said_so(refusing, SOUND, AGAIN).diagnosis
    said = diagnosis.modality_said
    assert said
    assert (said.kind, said.photos, said.called) == ("dermoscopic", (1, 2), None)
    assert diagnosis.next_step.urgency != "routine"
    assert all(shown_tier(diagnosis, one) != "routine" for one in diagnosis.candidates)
    assert (diagnosis.advice_errors, said_so(plain, SOUND).diagnosis.modality_said) == (None, None)
    stored = json.loads(diagnosis.model_dump_json())
    assert stored["modality_said"]["photos"] == [1, 2]
    assert Diagnosis.model_validate(stored) == diagnosis


@pytest.mark.parametrize("urgency", ["urgent", "soon", "unknown", "routine"])
def test_its_next_step_is_never_weaker_than_that_of_the_refusal(urgency: Urgency) -> None:
    step = NextStep(urgency=urgency, advice=advice_for(urgency), because="It is so.")
    now = giving_no_time(step, text("no_wait_said"), now=True)
    least = {"urgent": "urgent", "soon": "soon_now"}.get(urgency, "now")
    assert now.advice == advice_for(least)
    assert now.urgency == (urgency if urgency in ("urgent", "soon") else "unknown")


def test_every_output_says_it(refusing: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = said_so(refusing, SOUND)
    diagnosis, when = answered.diagnosis, datetime(2026, 11, 30, 9, tzinfo=UTC)
    (warning,) = modality_warning(diagnosis)
    assert "photo 1 was taken through a dermatoscope" in warning
    assert warnings(diagnosis)[0] == warning
    console = Console(record=True, width=400)
    print_diagnosis(diagnosis, console)
    monkeypatch.setattr(pdf_sheet, "dejavu", lambda: None)
    report = narrative.sections(diagnosis, None, when)
    printed = words_of(report_pdf(answered, None, when)).replace("\xa0", " ")
    for shown in (console.export_text(), str(report), printed):
        assert "was taken through a dermatoscope, but the model" in shown
        assert text("errors_said_unmeasured") in shown


def test_its_errors_are_those_measured_of_such_photos(refusing: Predictor) -> None:
    rows = [
        {"name": f"urgent classes {ALONE}", "n": 5, "rates": {"urgent": SHARE}},
        {"name": f"other classes {ALONE}", "n": 40, "rates": {"urgent": SHARE | {"value": 0.25}}},
    ]
    measured = replace(refusing)
    chosen = refusing.urgent_risk.level(None).miss_rate if refusing.urgent_risk else None
    vars(measured)["metrics"] = {"served": rows, "urgent_risk": {"chosen": chosen}}
    diagnosis = said_so(measured, SOUND).diagnosis
    _, missed, raised = advice_table(diagnosis)  # the page of errors names both
    assert (missed[1], raised[1]) == ("0 of 5", "10 of 40")
    said = " ".join(decision_texts.errors(diagnosis))
    assert "refused 5 urgent test images, and the model called 5 of them urgent" in said
    assert "It refused 40 others, and the model called 10 of them urgent" in said
    assert text("errors_said") in said


def test_what_is_said_counts_only_against_a_check_that_is_wrong(plain: Predictor) -> None:
    accepting = checked(plain, 1e9)
    assert said_so(accepting, SOUND).diagnosis.modality_said is None
    error = refused(accepting, SOUND, modality="clinical")
    assert (error.gate, error.unless) == ("modality", "")
    assert text("refused_take_dermoscopic") in str(error)
    clinical = checked(plain, kind="clinical")
    assert refused(clinical, SOUND).unless == "clinical"
    marked = said_so(clinical, SOUND, kind="clinical").diagnosis
    assert "without a dermatoscope" in modality_warning(marked)[0]
    with pytest.raises(UserError, match="modality 'macro' is not known"):
        Case((SOUND,), modality="macro")  # type: ignore[arg-type]


def test_an_answer_that_is_not_urgent_says_why_it_gives_no_time(tmp_path: Path) -> None:
    bundle = pack_tiny(tmp_path / "checked", taxonomy=load_taxonomy("skin10"))
    step = said_so(checked(Predictor.load(bundle.path)), SOUND).diagnosis.next_step
    assert (step.urgency, step.advice) == ("soon", advice_for("soon_now"))
    assert text("no_wait_said") in " ".join(step.more)
