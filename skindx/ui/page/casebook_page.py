"""The case book on the page: lesions and scans over time, two dates side by side, forms to keep."""

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any

from skindx.casebook.case_names import NAMED_FACTS
from skindx.casebook.findings import CONFIRMED_BY, OPINION
from skindx.casebook.kept_case import (
    CASE_CONSENTS,
    LIST,
    KeptCase,
    KeptScan,
    LesionHistory,
    filing_of,
    purposes_of,
)
from skindx.casebook.key_file import KeyFileError
from skindx.casebook.lesion_state import lesion_state, pathology_day
from skindx.core.errors import UserError
from skindx.diagnosis.advice_figures import combined
from skindx.diagnosis.answer_texts import (
    modality_warning,
    scope,
    suspected,
    unsure,
    weak_spots,
)
from skindx.diagnosis.case import limits_of, values_of
from skindx.diagnosis.case_actions import (
    LONGEST_DETAIL,
    ActionKind,
    awaited_since,
    entries_by_day,
    standing,
)
from skindx.diagnosis.checklist_advice import checklist_short, tier_of_advice
from skindx.diagnosis.decision_texts import errors
from skindx.diagnosis.filing import BY_PATHOLOGY, agreement_with
from skindx.diagnosis.intake import INTAKE
from skindx.diagnosis.record import Diagnosis
from skindx.scan.outputs.scan_pages import PAGE
from skindx.taxonomy import Taxonomy
from skindx.taxonomy.label_matches import known_conditions
from skindx.texts.catalogue import joined, percent, speaking, spoken, text
from skindx.ui.http.asgi import login_name
from skindx.ui.page.casebook_confirming import (
    CONFIRMS,
    FACT_TICKS,
    LATER_FACTS,
    AsksField,
    NoteDoubt,
    Overwrites,
    ReplaceOrNot,
    action_recorded,
    action_struck,
    agreed,
    confirmed,
    facts_added,
    version_of,
)
from skindx.ui.page.casebook_doubts import (
    another_person,
    are_unlike,
    entries_differ,
    seen_in,
    unplaced,
)
from skindx.ui.page.casebook_words import (
    added_words,
    alone_words,
    case_names,
    changes,
    consent_words,
    deletion_words,
    earlier_words,
    finding_words,
    is_advice_past,
    kept_apart,
    names_apart,
    note_state,
    note_words,
    person_words,
    purpose_names,
    recorded_words,
    same_offered,
    time_apart,
    times_words,
    uncompared_words,
)
from skindx.ui.page_basics import FAILED, data_url, log_fault, render, script, sentence

if TYPE_CHECKING:
    from skindx.casebook.casebook import Casebook
    from skindx.casebook.scan_book import ScanBook


log = logging.getLogger(__name__)


def casebook_error(error: UserError) -> str:
    """Return what a person reads of an error; where files lie is for the log."""
    if not isinstance(error, KeyFileError):
        return str(error)
    log.error("%s", error)
    return joined(text("book_key_file"), text("book_key_file_do"))


@dataclass(frozen=True)
class ScannedView:
    """The scans of one view of a patient, oldest first."""

    patient: str
    view: str
    scans: tuple[KeptScan, ...]


def scans_shown(book: "ScanBook", owner: str, sent: Mapping[str, str]) -> dict[str, Any]:
    """Return what the template needs of scans: all views, and of the chosen one what is asked for.

    Raises UserError for a case book that cannot be read.
    """
    views = _views(book.scans(owner))
    names = (sent.get("patient", ""), sent.get("view", ""))
    chosen = next((view for view in views if (view.patient, view.view) == names), None)
    shown: dict[str, Any] = {
        "views": views,
        "chosen_view": chosen,
        "shown_scan": None,
        "listing": "",
        "page": "",
        "pair": ("", ""),
        "comparison": "",
        "scan_problem": "",
        "scan_agreed": lambda scan: purpose_names(purposes_of(scan.consent)),
        "scan_names": names_apart(chosen.scans) if chosen else {},
    }
    if chosen is None:
        return shown
    ids = [scan.id for scan in chosen.scans]
    wanted = sent.get("scan", "") if sent.get("action") == "show-scan" else ids[-1]
    current = next((scan for scan in chosen.scans if scan.id == wanted), chosen.scans[-1])
    files = book.files(owner, current.id, LIST, PAGE)
    before, after = sent.get("before", ""), sent.get("after", "")
    pair = (before if before in ids else ids[0], after if after in ids else ids[-1])
    shown |= {
        "shown_scan": current,
        "listing": files.get(LIST, b"").decode(),
        "page": data_url(files[PAGE], "text/html") if PAGE in files else "",
        "pair": pair,
    }
    if sent.get("action") == "compare-scans":
        try:
            shown["comparison"] = _comparison(book, owner, *pair)
        except UserError as error:
            shown["scan_problem"] = sentence(casebook_error(error))
    return shown


def _comparison(book: "ScanBook", owner: str, first: str, second: str) -> str:
    from skindx.casebook.scan_book import compared
    from skindx.scan.compare.scan_comparison import render_comparison

    with compared(book, owner, first, second) as comparison:
        return render_comparison(comparison)


def _views(scans: list[KeptScan]) -> list[ScannedView]:
    """Return the views, the one scanned last first."""
    scans_by_view: dict[tuple[str, str], list[KeptScan]] = {}
    for scan in scans:
        scans_by_view.setdefault((scan.patient, scan.view), []).append(scan)
    views = [ScannedView(*name, tuple(scans)) for name, scans in scans_by_view.items()]
    return sorted(views, key=lambda view: view.scans[-1].taken, reverse=True)


_DONE = "() => { document.dispatchEvent(new Event('skindx-book-done')); }"


def add_casebook_tab(casebook: "Casebook", taxonomy: Taxonomy) -> None:
    """Put the case book into the open tab; its script reads it whenever the tab is shown.

    It is in the language that is spoken now: Gradio calls later, in a task of its own.
    """
    import gradio as gr

    language = spoken()
    scripts = script("act", "book", "zoom") + "open();"
    shown = gr.HTML("", apply_default_css=False, js_on_load=scripts, elem_id="sx-book")

    def act(event: gr.EventData, request: gr.Request) -> str:
        with speaking(language):
            return answered(_shown(casebook, taxonomy, login_name(request), form_of(event)))

    acted = shown.act(act, None, shown, api_visibility="private", show_progress="hidden")
    acted.then(None, js=_DONE)


def answered(html: str) -> str:
    """Return what a form is answered with, which differs each time.

    Gradio tells the page of changes alone, and an answer that never comes would seem lost.
    """
    return f'{html}<i hidden data-answer="{secrets.token_hex(4)}"></i>'


def form_of(event: Any) -> dict[str, str]:
    """Return the fields of a form of the page as texts, whatever was sent."""
    sent = event._data if isinstance(event._data, dict) else {}
    return {str(key): str(value) for key, value in sent.items()}


def _shown(casebook: "Casebook", taxonomy: Taxonomy, owner: str, sent: dict[str, str]) -> str:
    try:
        return act_on(casebook, taxonomy, owner, sent)
    except UserError as error:
        return render("book_problem.html.jinja", message=sentence(casebook_error(error)))
    except Exception as error:
        log_fault(log, "the case book could not be shown", error)
        return render("book_problem.html.jinja", message=FAILED)


def act_on(casebook: "Casebook", taxonomy: Taxonomy, owner: str, sent: dict[str, str]) -> str:
    """Do what a form of the case book asks for; return what is shown then.

    Raises UserError for a case book that cannot be read.
    """
    done, refusal = "", None
    try:
        if sent.get("action") in CONFIRMS:
            done = confirmed(casebook, taxonomy, owner, sent, version_of(sent))
        elif sent.get("action") == "agree":
            done = agreed(casebook, owner, sent)
        elif sent.get("action") == "facts":
            done = facts_added(casebook, owner, sent)
        elif sent.get("action") == "record":
            done = action_recorded(casebook, owner, sent)
        elif sent.get("action") == "strike":
            done = action_struck(casebook, owner, sent)
        elif sent.get("action") == "delete":
            casebook.delete(owner, sent.get("case", ""))
            done = text("book_deleted")
        elif sent.get("action") == "delete-scan":
            casebook.scans.delete(owner, sent.get("scan", ""))
            done = text("book_scan_deleted")
    except UserError as error:
        refusal = error
    return _html(casebook, taxonomy, owner, sent, done=done, refusal=refusal)


def _html(
    casebook: "Casebook",
    taxonomy: Taxonomy,
    owner: str,
    sent: dict[str, str],
    *,
    done: str,
    refusal: UserError | None,
) -> str:
    """Return the list of lesions, and the chosen one with two of its dates side by side.

    A form says itself what became of it. Where the case has changed meanwhile, what was typed and
    refused is shown above; otherwise the form holds all of it.
    """
    problem = sentence(casebook_error(refusal)) if refusal else ""
    denied, action = sent.get("no_person") == "yes", sent.get("action")
    lesions = casebook.lesions(owner)
    if action == "open":
        sent = sent | _place_named(casebook, owner, sent)
    wanted = (sent.get("patient", ""), sent.get("lesion", ""))
    chosen = next((lesion for lesion in lesions if (lesion.patient, lesion.lesion) == wanted), None)
    cases = casebook.cases(owner, chosen.patient, chosen.lesion) if chosen else []
    cases.sort(key=lambda case: case.when)
    before, after = _pair(cases, sent.get("before", ""), sent.get("after", ""))
    scans = scans_shown(casebook.scans, owner, sent)
    edited = next((case for case in cases if case.id == sent.get("case")), None)
    is_open = bool(problem and edited and edited.version == version_of(sent))
    filings = {case.id: filing_of(case, taxonomy, cases) for case in cases}
    ids = [case.id for case in (before, after) if case]
    same = same_offered(chosen, cases, taxonomy.keys) if chosen else {}
    if scans["shown_scan"]:
        ids = [scans["shown_scan"].id]
    return render(
        "book.html.jinja",
        place=f"#book={','.join(ids)}" if ids else "#book",
        opinion=OPINION,
        lesions=lesions,
        patients=by_patient(lesions),
        findings={(one.patient, one.lesion): finding_words(one, taxonomy) for one in lesions},
        states={(one.patient, one.lesion): lesion_state(one, taxonomy) for one in lesions},
        deletions=[deletion_words(one) for one in casebook.deletions(owner)],
        entries={case.id: entries_by_day(case.actions) for case in cases},
        standing=standing,
        awaited_since=awaited_since,
        pathology_day=pathology_day,
        by_pathology=BY_PATHOLOGY,
        scores={case.id: _score(case.diagnosis) for case in cases},
        action_kinds=list(ActionKind),
        longest_detail=LONGEST_DETAIL,
        today=date.today().isoformat(),
        acting=sent.get("action") == "record",
        times_words=times_words,
        uncompared_words=uncompared_words,
        is_advice_past=is_advice_past,
        modality_warning=modality_warning,
        suspected=suspected,
        unsure=unsure,
        tiers={case.id: tier_of_advice(case.diagnosis) for case in cases},
        filings=filings,
        chosen=chosen,
        cases=cases,
        names=case_names(cases),
        kept_at=kept_apart(cases),
        unscaled=any(
            one.width_mm is None
            for case in (before, after)
            if case
            for one in case.diagnosis.photos
        ),
        is_open_to_all=not owner,
        login=owner,
        same=same,
        same_named={same[one].id for one in ids if one in same},
        named_facts=NAMED_FACTS,
        asks_field=refusal.field if isinstance(refusal, AsksField) else "",
        ticks={
            tick: text(key)
            for tick, (kind, key) in FACT_TICKS.items()
            if isinstance(refusal, kind) or sent.get(tick)
        },
        persons=another_person(seen_in(before), seen_in(after)) if before and after else [],
        fact_nouns=lambda names: [INTAKE[one].noun or one for one in names],
        noted={key: note_words(one) for key, one in filings.items()},
        note_states={key: note_state(one) for key, one in filings.items()},
        recorded_words=recorded_words,
        earlier={key: earlier_words(one) for key, one in filings.items()},
        consented={case.id: consent_words(case) for case in cases},
        replaces=refusal.words if isinstance(refusal, ReplaceOrNot) else "",
        over=refusal if isinstance(refusal, Overwrites) else None,
        doubt=denied or isinstance(refusal, NoteDoubt),
        denied=denied,
        compared={
            case.id: agreement_with(case.diagnosis, one)
            for case in cases
            if (one := filings[case.id].recorded)
        },
        errors={
            case.id: joined(
                combined(case.diagnosis),
                *errors(case.diagnosis),
                *weak_spots(case.diagnosis),
                *scope(case.diagnosis),
            )
            for case in cases
        },
        shown=[
            {
                "case": replace(case, diagnosis=case.diagnosis.named()),
                "photos": [data_url(jpeg, "image/jpeg") for jpeg in case.photos],
            }
            for case in (before, after)
            if case
        ],
        alone=alone_words(cases),
        comparable=sum("compare" in case.purposes for case in cases) > 1,
        conditions=known_conditions(),
        consents=CASE_CONSENTS,
        confirmed_by=CONFIRMED_BY,
        before=before,
        after=after,
        apart=time_apart(before, after) if before and after else "",
        changes=changes(before, after),
        unlike=are_unlike(before, after),
        person={case.id: person_words(case) for case in cases},
        added={case.id: added_words(case) for case in cases},
        later_facts={one: INTAKE[one] for one in LATER_FACTS},
        values_of=values_of,
        limits_of=limits_of,
        differences=entries_differ(before, after, case_names(cases)) if before and after else [],
        unplaced=unplaced(before, after) if before and after else [],
        classes=taxonomy.classes,
        percent=percent,
        done=done,
        problem=problem,
        unsaved=_unsaved(edited, sent) if problem and not is_open else "",
        refused=edited.id if edited and is_open and action in (*CONFIRMS, "record") else "",
        facts_refused=sent if is_open and action == "facts" else {},
        saved=edited.id if edited and done and action in CONFIRMS else "",
        **scans,
    )


def _score(diagnosis: Diagnosis) -> str:
    """Return what the 7-point checklist says, in the language of the answer beside it."""
    with speaking(diagnosis.language):
        return checklist_short(diagnosis)


def _unsaved(edited: KeptCase | None, sent: Mapping[str, str]) -> str:
    """Return what was typed of a case and differs from what is kept, separated by commas."""
    other = edited.outside if edited else None
    kept = {"note": edited.note if edited else "", "other": other.name if other else "",
            "icd10": other.icd10 if other else "", "detail": ""}  # fmt: skip
    return ", ".join(typed for name, was in kept.items() if (typed := sent.get(name, "")) != was)


def by_patient(lesions: Sequence[LesionHistory]) -> dict[str, list[LesionHistory]]:
    """Return the lesions of each patient; the patient and the lesion kept last come first."""
    patients: dict[str, list[LesionHistory]] = {}
    for lesion in lesions:
        patients.setdefault(lesion.patient, []).append(lesion)
    return patients


def _place_named(casebook: "Casebook", owner: str, sent: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of a form that show the one or two cases, or the scan, of an address."""
    first, last = sent.get("first", ""), sent.get("last", "") or sent.get("first", "")
    if named := casebook.names_of(owner, last):
        return {"patient": named[0], "lesion": named[1], "before": first, "after": last}
    for scan in casebook.scans.scans(owner):
        if scan.id == last:
            return {"patient": scan.patient, "view": scan.view, "action": "show-scan", "scan": last}
    return {}


def _pair(
    cases: list[KeptCase], before: str, after: str
) -> tuple[KeptCase | None, KeptCase | None]:
    """Return the two cases to compare, in their order: those asked for, else the first and last.

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
    first, last = sorted(pair, key=cases.index)
    return (None, last) if first.id == last.id else (first, last)
