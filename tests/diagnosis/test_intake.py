"""A fact of the intake is declared once, and every part of skindx asks for it and passes it on."""

import inspect
import re
from typing import Any, get_type_hints

from skindx.casebook import casebook_export
from skindx.cli.diagnose import diagnose
from skindx.core.seven_points import QUESTIONS
from skindx.diagnosis.case import Patient, PersonFacts, limits_of, patient_facts, values_of
from skindx.diagnosis.intake import INTAKE
from skindx.diagnosis.photo_list import FACTS
from skindx.ui.http.api_schemas import form_schema
from skindx.ui.page.form_html import intake_html

ASKED: dict[str, Any] = dict.fromkeys(QUESTIONS, "no")
WHOLE = Patient(
    age=54, sex="female", site="back", laterality="left", duration="always", skin_type=2, **ASKED
)


def test_the_declared_facts_are_those_of_a_patient_in_their_order() -> None:
    assert list(INTAKE) == [name for name in Patient.model_fields if name != "from_file"]
    assert list(INTAKE) == list(PersonFacts.__annotations__)
    numbers = [name for name, fact in INTAKE.items() if fact.number]
    assert numbers == [
        name for name, kind in get_type_hints(PersonFacts).items() if kind == int | None
    ]
    assert list(WHOLE.given) == list(INTAKE)


def test_every_part_asks_for_every_fact() -> None:
    shown = intake_html(64)
    fields = dict.fromkeys(re.findall(r'name="(\w+)"[^>]*data-fact', shown))
    schema = form_schema(3)["content"]["multipart/form-data"]["schema"]["properties"]
    asked = list(inspect.signature(diagnose).parameters)
    assert list(fields) == list(INTAKE)
    assert [name for name in schema if name in INTAKE] == list(INTAKE)
    assert [name for name in asked if name in INTAKE] == list(INTAKE)
    assert list(FACTS) == list(INTAKE)
    assert [name for name in casebook_export._COLUMNS if name in INTAKE] == list(INTAKE)


def test_the_page_offers_every_value_but_those_that_a_person_knows_better() -> None:
    shown = intake_html(64)
    for name, fact in INTAKE.items():
        values = values_of(name)
        offered = [value for value in values if f'value="{value}"' in shown]
        assert offered == [value for value in values if value not in fact.not_offered]
        assert set(fact.words) | set(fact.reported) | set(fact.notes) <= set(values)
        if not values:
            least, largest = limits_of(name)
            assert f'name="{name}" type="number" min="{least}" max="{largest}"' in shown


def test_a_report_prints_every_given_fact() -> None:
    assert patient_facts(WHOLE) == [
        ("age", "54 years"),
        ("sex", "female"),
        ("place", "back, left side"),
        ("there for", "as long as remembered"),
        ("Fitzpatrick skin type", "II"),
        *((INTAKE[name].report, "no") for name in QUESTIONS),
    ]
    assert patient_facts(Patient()) == []


def test_a_question_says_which_item_it_answers_and_has_no_choice_beforehand() -> None:
    fold = intake_html(64).partition('class="sx-card sx-asks"')[2].partition("</details>")[0]
    rows = fold.split("<fieldset")[1:]
    assert len(rows) == len(QUESTIONS)
    assert "checked" not in fold
    for name, row in zip(QUESTIONS, rows, strict=True):
        assert row.count(f'type="radio" name="{name}"') == 3
        assert f'aria-labelledby="sx-ask-{name}"' in row
    major, minor, printed = (fold.index(one) for one in (
        "Major features, 2 points each", "Minor features, 1 point each", "Not in the checklist",
    ))  # fmt: skip
    places = {one: fold.index(f'id="sx-ask-{one}"') for one in QUESTIONS}
    by_group = [sum(place < at for at in (major, minor, printed)) for place in places.values()]
    assert by_group == [3] + 3 * [2] + 5 * [1] + 3 * [0]
    for name, item in (("grew", "change in size"), ("large", "largest diameter 7 mm or more"),
                       ("bleeds", "oozing or crusting"), ("inflamed", "inflammation")):  # fmt: skip
        assert f"<small>{item}</small>" in rows[QUESTIONS.index(name)]
    for name in ("itches", "hurts"):
        together = "change in sensation: itching and pain together 1 point<"
        assert together in rows[QUESTIONS.index(name)]
