"""The case book on the page: lesions and scans over time, two dates side by side, forms to keep."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skindx.casebook.case_names import IdentifyingName, spelled
from skindx.casebook.kept_case import (
    CASE_CONSENTS,
    CONFIRMED_BY,
    LIST,
    OPINION,
    KeptCase,
    KeptScan,
    one_lesion_question,
    outside_of,
)
from skindx.casebook.key_file import KeyFileError
from skindx.core.errors import UserError
from skindx.diagnosis.case import patient_facts
from skindx.diagnosis.intake import INTAKE
from skindx.diagnosis.record import CaseAnswer
from skindx.scan.outputs.scan_pages import PAGE
from skindx.taxonomy import Taxonomy
from skindx.taxonomy.label_matches import known_conditions
from skindx.texts.catalogue import percent
from skindx.ui.http.answer_forms import Reports
from skindx.ui.http.asgi import login_name
from skindx.ui.page.answer_html import followup_html, problem_html
from skindx.ui.page_basics import FAILED, data_url, log_fault, render, script, sentence
from skindx.ui.scans.scan_job import LIST as LIST_FILE
from skindx.ui.scans.scan_job import RESULTS

if TYPE_CHECKING:
    from skindx.casebook.casebook import Casebook
    from skindx.casebook.scan_book import ScanBook
    from skindx.ui.scans.scan_jobs import ScanJobs


log = logging.getLogger(__name__)


def casebook_error(error: UserError) -> str:
    """Return what a person reads of an error; where files lie is for the log."""
    if not isinstance(error, KeyFileError):
        return str(error)
    log.error("%s", error)
    return "the key file of the case book cannot be used; tell the operator of this page."


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


def add_casebook_tab(casebook: "Casebook", taxonomy: Taxonomy) -> None:
    """Put the case book into the open tab; its script reads it whenever the tab is shown."""
    import gradio as gr

    scripts = script("book") + script("act") + "open();"
    shown = gr.HTML("", apply_default_css=False, js_on_load=scripts, elem_id="sx-book")

    def act(event: gr.EventData, request: gr.Request) -> str:
        return _shown(casebook, taxonomy, login_name(request), _form_of(event))

    shown.act(act, None, shown, api_visibility="private", show_progress="hidden")


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
            casebook.scans.delete(owner, sent.get("scan", ""))
            done = "The scan, its photos and its lesions are deleted."
    except UserError as error:
        problem, unsaved = sentence(casebook_error(error)), sent.get("note", "")
    return casebook_html(
        casebook, taxonomy, owner, sent, done=done, problem=problem, unsaved=unsaved
    )


def _confirm(casebook: "Casebook", taxonomy: Taxonomy, owner: str, sent: dict[str, str]) -> str:
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
        confirmed_by=sent.get("confirmed_by", ""),
    )
    if sent.get("confirmed_by") == OPINION:
        return (
            "The clinical opinion and the note are saved. It is no confirmed diagnosis, and no "
            "training uses it."
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
    casebook: "Casebook",
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
    if sent.get("action") == "open":
        sent = sent | _place_named(casebook, owner, sent)
    wanted = (sent.get("patient", ""), sent.get("lesion", ""))
    chosen = next((lesion for lesion in lesions if (lesion.patient, lesion.lesion) == wanted), None)
    cases = casebook.cases(owner, chosen.patient, chosen.lesion) if chosen else []
    before, after = _pair(cases, sent.get("before", ""), sent.get("after", ""))
    scans = scans_shown(casebook.scans, owner, sent)
    ids = [case.id for case in (before, after) if case]
    if scans["shown_scan"]:
        ids = [scans["shown_scan"].id]
    return render(
        "book.html.jinja",
        place=f"#book={','.join(ids)}" if ids else "#book",
        opinion=OPINION,
        lesions=lesions,
        chosen=chosen,
        cases=cases,
        names=names_apart(cases),
        shown=[
            {"case": case, "photos": [data_url(jpeg, "image/jpeg") for jpeg in case.photos]}
            for case in (before, after)
            if case
        ],
        alone=[case for case in cases if "compare" not in case.purposes],
        conditions=known_conditions(),
        consents=CASE_CONSENTS,
        confirmed_by=CONFIRMED_BY,
        before=before,
        after=after,
        apart=time_apart(before, after) if before and after else "",
        person={case.id: patient_facts(case.diagnosis.patient) for case in cases},
        differences=differing_facts(before, after),
        classes=taxonomy.classes,
        percent=percent,
        done=done,
        problem=problem,
        unsaved=unsaved,
        **scans,
    )


def _place_named(casebook: "Casebook", owner: str, sent: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of a form that show the one or two cases, or the scan, of an address."""
    first, last = sent.get("first", ""), sent.get("last", "") or sent.get("first", "")
    if named := casebook.names_of(owner, last):
        return {"patient": named[0], "lesion": named[1], "before": first, "after": last}
    for scan in casebook.scans.scans(owner):
        if scan.id == last:
            return {"patient": scan.patient, "view": scan.view, "action": "show-scan", "scan": last}
    return {}


def differing_facts(before: KeptCase | None, after: KeptCase | None) -> list[tuple[str, str, str]]:
    """Return the facts that two cases of one lesion cannot both have, with both values."""
    if before is None or after is None:
        return []
    first, last = before.diagnosis.patient, after.diagnosis.patient
    pairs = [(name, getattr(first, name), getattr(last, name)) for name in _LASTING]
    return [
        (INTAKE[name].noun or name, str(one), str(other))
        for name, one, other in pairs
        if one is not None and other is not None and one != other
    ]


def time_apart(before: KeptCase, after: KeptCase) -> str:
    """Return how far apart two cases are, by the dates of their photos where both are known."""
    first, last = before.photographed, after.photographed
    if first and last:
        days = abs((last - first).days)
        if days == 0:
            return "The photos of both were taken on the same day."
        return f"The photos were taken {days} day{'s' if days != 1 else ''} apart."
    days = abs((after.taken.date() - before.taken.date()).days)
    kept = f"{days} day{'s' if days != 1 else ''} apart" if days else "on the same day"
    return (
        f"It is not known when the photos of {'one' if first or last else 'both'} were taken, so "
        f"not how far apart they are. The cases were kept {kept}."
    )


_LASTING = ("sex", "site", "laterality", "skin_type")


def names_apart(kept: Sequence[KeptCase | KeptScan]) -> dict[str, str]:
    """Return a name for each case or scan, by its id: when it was kept, as exactly as needed.

    Of one minute they are named with seconds, and of one second with a number.
    """
    names = {one.id: f"{one.taken:%d %b %Y, %H:%M}" for one in kept}
    alike = Counter(names.values())
    names |= {one.id: f"{one.taken:%d %b %Y, %H:%M:%S}" for one in kept if alike[names[one.id]] > 1}
    alike, seen = Counter(names.values()), Counter[str]()
    for key, name in names.items():
        if alike[name] > 1:
            seen[name] += 1
            names[key] = f"{name} ({seen[name]})"
    return names


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
    if first.photographed and last.photographed and first.photographed > last.photographed:
        first, last = last, first
    return (None, last) if first.id == last.id else (first, last)


_NO_SCAN = "this scan is no longer on the server and cannot be kept; scan the photo again."


def case_keeper(casebook: "Casebook", reports: Reports) -> Callable[..., str]:
    """Return what keeps an answer."""
    import gradio as gr

    def keep(answer: CaseAnswer | None, event: gr.EventData, request: gr.Request) -> str:
        if answer is None:
            return problem_html(
                "This answer has expired and cannot be kept; ask again, then keep the new answer."
            )
        owner, form = login_name(request), _form_of(event)
        names = {name: form.get(name, "") for name in ("patient", "lesion")}
        given: dict[str, Any] = {**names, **_agreed(form, "consent", "compare", "train")}

        def keep_case() -> tuple[str, str] | None:
            if one_lesion_question(answer.diagnosis) and form.get("one_lesion") != "yes":
                raise UserError(
                    "a case holds one lesion; tick that the photos show one and the same, or send "
                    "the photos of each lesion alone."
                )
            no_person = form.get("no_person") == "yes"
            case = casebook.keep(owner, answer, **given, no_person=no_person)
            return casebook.names_of(owner, case)

        shown: dict[str, Any] = _keep("case", keep_case)
        shown |= {"known": known_names(casebook, owner), "sent": form}
        return followup_html(answer, reports, owner, keeps=True, **shown)

    return keep


def scan_keeper(casebook: "Casebook", jobs: "ScanJobs | None") -> Callable[..., str]:
    """Return what keeps a scan that is still on the server."""
    import gradio as gr

    def keep(event: gr.EventData, request: gr.Request) -> str:
        owner, form = login_name(request), _form_of(event)
        names = {name: form.get(name, "") for name in ("patient", "view")}
        given: dict[str, Any] = {**names, **_agreed(form, "consent", "compare")}
        job = jobs.get(form.get("scan", ""), owner) if jobs else None

        def keep_scan() -> tuple[str, str]:
            if job is None or job.state != "done":
                raise UserError(_NO_SCAN)
            try:
                listing = (job.folder / LIST_FILE).read_text(encoding="utf-8")
                folder = job.folder / RESULTS
                named = {"patient": spelled(names["patient"], known_names(casebook, owner))}
                no_person = form.get("no_person") == "yes"
                kept = casebook.scans.keep(
                    owner, folder, **given | named, listing=listing, no_person=no_person
                )
                scan = casebook.scans.scan(owner, kept)
                return scan.patient, scan.view
            except FileNotFoundError:  # deleted meanwhile
                raise UserError(_NO_SCAN) from None

        outcome = _keep("scan", keep_scan)
        problem = sentence(outcome.get("problem", ""))
        return render("scan_kept.html.jinja", kept=outcome.get("kept", ""), problem=problem)

    return keep


def known_names(casebook: "Casebook", owner: str) -> dict[str, list[str]]:
    """Return the names of an owner's patients and their lesions; empty for a book that fails."""
    try:
        return casebook.known_names(owner)
    except UserError as error:
        log.warning("%s", casebook_error(error))
        return {}


def _keep(what: str, keep: Callable[[], tuple[str, str] | None]) -> dict[str, Any]:
    """Keep something, which returns its names; return as `kept` or `problem` what the page says.

    `doubt`: the names may say who the patient is, which a tick denies.
    """
    try:
        names = keep()
    except IdentifyingName as error:
        return {"problem": str(error), "doubt": True}
    except UserError as error:
        return {"problem": casebook_error(error)}
    except Exception as error:
        log_fault(log, f"a {what} could not be kept", error)
        return {"problem": FAILED}
    return {"kept": f"Kept in the case book under {', '.join(names or ())}."}


def _agreed(form: Mapping[str, str], *names: str) -> dict[str, bool]:
    return {name: form.get(name) == "yes" for name in names}


def _form_of(event: Any) -> dict[str, str]:
    """Return the fields of a form of the page as texts, whatever was sent."""
    sent = event._data if isinstance(event._data, dict) else {}
    return {str(key): str(value) for key, value in sent.items()}
