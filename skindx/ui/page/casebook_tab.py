"""The case book's tab: lesions over time, two dates side by side, what a clinician confirmed."""

import logging
from typing import TYPE_CHECKING, Any

from skindx.casebook.casebook import Casebook
from skindx.casebook.kept_case import CASE_CONSENTS, KeptCase, outside_of
from skindx.core.errors import UserError
from skindx.diagnosis.record import percent
from skindx.taxonomy import Taxonomy
from skindx.taxonomy.matching import known_conditions
from skindx.ui.asgi import login_name
from skindx.ui.faults import FAILED, log_fault
from skindx.ui.html import data_url, render, sentence
from skindx.ui.page.assets import script
from skindx.ui.page.casebook_error import casebook_error
from skindx.ui.page.casebook_scans import delete_scan, scans_shown
from skindx.ui.page.result import TIERS

if TYPE_CHECKING:
    import gradio as gr

log = logging.getLogger(__name__)


def add_casebook_tab(tab: "gr.Tab", casebook: Casebook, taxonomy: Taxonomy) -> None:
    """Put the case book into a tab; it is read again whenever the tab is opened."""
    import gradio as gr

    shown = gr.HTML("", apply_default_css=False, js_on_load=script("act"), elem_id="sx-book")

    def open_book(request: gr.Request) -> str:
        return _shown(casebook, taxonomy, login_name(request), {})

    def act(event: gr.EventData, request: gr.Request) -> str:
        sent = event._data if isinstance(event._data, dict) else {}
        form = {str(key): str(value) for key, value in sent.items()}
        return _shown(casebook, taxonomy, login_name(request), form)

    tab.select(open_book, None, shown, api_visibility="private", show_progress="hidden")
    shown.act(act, None, shown, api_visibility="private", show_progress="hidden")


def _shown(casebook: Casebook, taxonomy: Taxonomy, owner: str, sent: dict[str, str]) -> str:
    try:
        return act_on(casebook, taxonomy, owner, sent)
    except UserError as error:
        return render("book_problem.html.jinja", message=sentence(casebook_error(error)))
    except Exception as error:
        log_fault(log, "the case book could not be shown", error)
        return render("book_problem.html.jinja", message=FAILED)


def act_on(casebook: Casebook, taxonomy: Taxonomy, owner: str, sent: dict[str, str]) -> str:
    """Do what a form of the case book asks for; return what is shown then.

    Raises UserError for a case book that cannot be read.
    """
    problem = done = unsaved = ""
    try:
        if sent.get("action") == "confirm":
            done = _confirm(casebook, taxonomy, owner, sent)
        elif sent.get("action") == "agree":
            casebook.agree(
                owner, sent.get("case", ""), compare=sent.get("compare") == "yes",
                train=sent.get("train") == "yes", version=_version(sent.get("version", "")),
            )  # fmt: skip
            done = "What the patient agrees to is saved."
        elif sent.get("action") == "delete":
            casebook.delete(owner, sent.get("case", ""))
            done = "The case and its photos are deleted."
        elif sent.get("action") == "delete-scan":
            done = delete_scan(casebook.scans, owner, sent.get("scan", ""))
    except UserError as error:
        problem, unsaved = sentence(casebook_error(error)), sent.get("note", "")
    return casebook_html(
        casebook, taxonomy, owner, sent, done=done, problem=problem, unsaved=unsaved
    )


def _confirm(casebook: Casebook, taxonomy: Taxonomy, owner: str, sent: dict[str, str]) -> str:
    """Save a confirmed diagnosis and the note; return what to say. Raises UserError."""
    named, outside = outside_of(sent.get("other", ""), sent.get("icd10", ""), taxonomy)
    label = sent.get("label", "")
    if label and named and label != named:
        raise UserError(
            "choose a class of the model or write another diagnosis, not both; clear one of them."
        )
    casebook.confirm(
        owner,
        sent.get("case", ""),
        label or named,
        sent.get("note", ""),
        taxonomy.keys,
        version=_version(sent.get("version", "")),
        outside=outside,
    )
    if outside:
        return (
            f"{outside.words} and the note are saved. It is no class of this model, and no "
            "training uses it."
        )
    if named and not label:
        return f"{taxonomy[named].name}, a class of this model, and the note are saved."
    return "The confirmed diagnosis and the note are saved."


def casebook_html(
    casebook: Casebook,
    taxonomy: Taxonomy,
    owner: str,
    sent: dict[str, str],
    *,
    done: str = "",
    problem: str = "",
    unsaved: str = "",
) -> str:
    """Return the list of lesions, and the chosen one with two of its dates side by side.

    `unsaved` is a note that was refused: it is shown, so that it need not be written twice.
    """
    lesions = casebook.lesions(owner)
    asked = (sent.get("patient", ""), sent.get("lesion", ""))
    chosen = next((lesion for lesion in lesions if (lesion.patient, lesion.lesion) == asked), None)
    cases = casebook.cases(owner, chosen.patient, chosen.lesion) if chosen else []
    before, after = _pair(cases, sent.get("before", ""), sent.get("after", ""))
    return render(
        "book.html.jinja",
        lesions=lesions,
        chosen=chosen,
        cases=cases,
        shown=[shown_case(case) for case in (before, after) if case],
        alone=[case for case in cases if "compare" not in case.purposes],
        conditions=known_conditions(),
        consents=CASE_CONSENTS,
        before=before,
        after=after,
        days=(after.taken - before.taken).days if before and after else 0,
        classes=taxonomy.classes,
        tiers=TIERS,
        percent=percent,
        done=done,
        problem=problem,
        unsaved=unsaved,
        **scans_shown(casebook.scans, owner, sent),
    )


def shown_case(case: KeptCase) -> dict[str, Any]:
    """Return a case and its photos as a template shows them."""
    return {"case": case, "photos": [data_url(jpeg, "image/jpeg") for jpeg in case.photos]}


def _version(text: str) -> int:
    """Return which version of a case a form was made from; a form without one is refused."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _pair(
    cases: list[KeptCase], before: str, after: str
) -> tuple[KeptCase | None, KeptCase | None]:
    """Return the two cases to compare, older first: those asked for, else the first and the last.

    A lesion that was seen once has no older one, and a case that was kept without consent to
    compare it is shown alone.
    """
    if not cases:
        return None, None
    by_id = {case.id: case for case in cases}
    agreed = [case for case in cases if "compare" in case.purposes] or cases[-1:]
    pair = [by_id.get(before, agreed[0]), by_id.get(after, agreed[-1])]
    if any("compare" not in case.purposes for case in pair):
        named = [case for case in pair if "compare" not in case.purposes]
        return None, named[-1]
    first, last = sorted(pair, key=lambda case: case.taken)
    return (None, last) if first.id == last.id else (first, last)
