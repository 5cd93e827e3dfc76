"""What the diagnosis page asks, as HTML, and what its forms sent, as a case."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, cast

from skindx.core.errors import UserError
from skindx.core.seven_points import ITEM_OF, ITEMS, QUESTIONS, REFER_FROM
from skindx.data.origin import ImageOrigin
from skindx.diagnosis.advice_figures import advice_errors
from skindx.diagnosis.answer_texts import to_say
from skindx.diagnosis.case import (
    MAX_PHOTOS,
    Case,
    Patient,
    how_facts_count,
    limits_of,
    skin_type_chooses,
    values_of,
)
from skindx.diagnosis.checklist_advice import unanswered_step
from skindx.diagnosis.decision_texts import errors_of
from skindx.diagnosis.intake import INTAKE
from skindx.diagnosis.photo_checks import MAX_BYTES, MAX_RATIO
from skindx.diagnosis.record import notice
from skindx.imaging.decode import MAX_PIXELS
from skindx.imaging.decode_cost import SCALED_MOST
from skindx.imaging.photo_gates import Kind
from skindx.models.bundle.bundle import Bundle
from skindx.models.bundle.use_limits import NO_EXAMPLES, Examples, UseLimits, use_columns
from skindx.texts.catalogue import joined, text
from skindx.ui.http.answer_rows import AT_A_TIME, COLUMNS
from skindx.ui.page_basics import render
from skindx.ui.uploads import offered_examples, take_uploads


def intake_html(
    least_side: int,
    images: ImageOrigin | None = None,
    *,
    crop: float | None = 1.0,
    fields: Sequence[str] = (),
    by_skin_type: bool = True,
    examples: Examples = NO_EXAMPLES,
    use: UseLimits | None = None,
) -> str:
    """Return the form; `intake.js` brings it to life. A photo needs so many pixels on each side.

    `images` are those that the model learned from: the form says which photos it is for. `crop` is
    the share of the shorter side that the networks see, a square that the form draws; None: all of
    a photo. `fields` are the facts about the person that change an answer, `by_skin_type`: a skin
    type chooses thresholds, `examples` are offered to try the form with, `use` says for whom the
    model names no condition.
    """
    beyond = text("facts_beyond", names=use.lacking) if use and use.lacking else ""
    dermoscopic = images is not None and images.modality == "dermoscopic"
    dark = text("skin_type_beyond") if use and use.beyond(None, None, 6) else ""
    return render(
        "intake.html.jinja",
        facts={one: INTAKE[one] for one in INTAKE if one not in {"skin_type", *QUESTIONS}},
        questions=question_groups(),
        refer_from=REFER_FROM,
        limits_of=limits_of,
        values_of=values_of,
        changes_nothing=joined(how_facts_count(fields), beyond),
        skin_type_chooses=joined(skin_type_chooses(chooses=by_skin_type), dark),
        most=MAX_PHOTOS,
        max_bytes=MAX_BYTES,
        limits=photo_limits(least_side),
        crop=crop,
        lead=joined(text("lead_dermoscopic" if dermoscopic else "lead"), text("lead_get")),
        expects=images.expects if images else "",
        images=images,
        examples=offered_examples(examples),
        unanswered=unanswered_shown(Patient()),
    )


def unanswered_shown(patient: Patient, unless: Kind | Literal[""] = "") -> dict[str, Any]:
    """Return the next step after a refusal as `intake.js` shows it.

    `unless` is how a person may say that the photos were taken, to get an answer.
    """
    step = unanswered_step(patient)
    shown = {"heading": text("step_heading"), "tier": step.tier, "urgency": step.urgency}
    return shown | to_say(unless) | asdict(step) | {"record": text("unjudged_report")}


def question_groups() -> dict[str, dict[str, str]]:
    """Return the questions under their headings, each with what it is in the 7-point checklist.

    The items have the names that the checklist was published with.
    """
    groups: dict[str, dict[str, str]] = {}
    for question in QUESTIONS:
        if question not in ITEM_OF:
            heading, means = "", text("asks_scope")
            if question != "pigmented":
                heading, means = text("asks_printed"), ""
        else:
            item = ITEM_OF[question]
            points, asked = ITEMS[item]
            heading = text("asks_major" if points > 1 else "asks_minor", n=points)
            means = text(f"item_{item}")
            if len(asked) > 1:
                means = text("asks_together", item=means, n=points)
        groups.setdefault(heading, {})[question] = means
    return groups


MOST_PHOTOS = 1000
"""Photos of one queue of the page: the answers to more are better kept in files."""


def photo_limits(least_side: int) -> str:
    """Return what a photo may be, as it stands beside the fields that take one."""
    megapixels = MAX_PIXELS // 1_000_000
    pixels = {"megapixels": megapixels, "jpeg": SCALED_MOST * megapixels, "least": least_side}
    return joined(
        text("form_limits", most=MAX_BYTES >> 20),
        text("form_limits_pixels", ratio=MAX_RATIO, **pixels),
    )


def many_html(least_side: int, use: UseLimits | None = None, errors: str = "") -> str:
    """Return the card that takes many photos; `many.js` has their queue.

    `use` is what the bundle may be used for, which stands in each row and below them, where both
    `errors` of the advice stand too.
    """
    return render(
        "many.html.jinja",
        most=MOST_PHOTOS,
        max_bytes=MAX_BYTES,
        columns=",".join((*COLUMNS, *use_columns(use))),
        limits=photo_limits(least_side),
        at_a_time=AT_A_TIME,
        accept="image/*,.heic,.heif,.dcm",
        notice=joined(errors, use.sentence if use else "", notice()),
    )


def case_of(sent: object, folder: Path) -> Case:
    """Return the case that the form sent; its files are deleted from `folder` in any case.

    Raises UserError for what no form of ours sends: the page is open to anybody.
    """
    values = sent if isinstance(sent, Mapping) else {}
    paths = values.get("photos")
    photos = take_uploads(paths if isinstance(paths, list) else [], folder)
    if len(set(photos)) < len(photos) <= MAX_PHOTOS:
        raise UserError(text("form_same_photo"))
    modality = str(values.get("modality") or "")
    return Case(photos, patient_of(values.get("patient")), modality=cast(Any, modality))


def patient_of(sent: object) -> Patient:
    """Return the facts about the person; empty fields are left out. Raises UserError."""
    facts: dict[str, Any] = {
        key: value for key, value in (sent.items() if isinstance(sent, Mapping) else ()) if value
    }
    if "from_file" in facts:  # what photos say is read from them
        raise UserError("the field 'from_file' is not allowed; remove it.")
    for key in [name for name, fact in INTAKE.items() if fact.number and name in facts]:
        named = INTAKE[key].noun or key
        try:
            facts[key] = int(str(facts[key]))
        except ValueError:
            raise UserError(
                f"{named} {str(facts[key])[:20]!r} is not a whole number; correct it or leave it "
                "empty."
            ) from None
        if not values_of(key):
            least, largest = limits_of(key)
            if not least <= facts[key] <= largest:
                raise UserError(
                    f"the {named} {facts[key]} is out of range; give a number from {least} to "
                    f"{largest}, or leave it empty."
                )
    return Patient.parse(facts, origin="the form", expand=False)


def measured_errors(bundle: Bundle, miss_rate: float | None) -> str:
    """Return both errors of the advice in sentences; "" where they were not measured."""
    rule = bundle.spec.urgent_risk
    used = rule.level(miss_rate).miss_rate if rule else None
    measured = advice_errors(bundle.metrics(), used)
    return joined(*errors_of(measured)) if measured else ""


def by_skin_type(bundle: Bundle) -> bool:
    """Return whether any threshold of the bundle is that of a skin type."""
    spec = bundle.spec
    rules = (spec.urgent_risk, spec.soon_risk)
    own = any(rule is not None and len(rule.lesions) > 1 for rule in rules)
    return own or bool(spec.conformal and spec.conformal.group_pictures)
