"""The forms that keep an answer or a scan in the case book."""

import logging
from collections.abc import Callable, Mapping
from datetime import date
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from skindx.casebook.case_names import NAMED_FACTS, IdentifyingName, spelled
from skindx.casebook.kept_case import PersonSeen, first_day, one_lesion_question
from skindx.core.errors import UserError
from skindx.diagnosis.case import Patient
from skindx.diagnosis.record import CaseAnswer
from skindx.texts.catalogue import joined, speaking, spoken, text
from skindx.ui.http.answer_forms import Reports
from skindx.ui.http.asgi import login_name
from skindx.ui.page.answer_html import followup_html, problem_html
from skindx.ui.page.casebook_confirming import (
    AnotherLesion,
    AnotherPerson,
    other_cases,
    require_same_person,
)
from skindx.ui.page.casebook_doubts import another_lesion, unlike_words
from skindx.ui.page.casebook_page import answered, casebook_error, form_of
from skindx.ui.page.casebook_words import case_names, same_photos
from skindx.ui.page.form_html import patient_of
from skindx.ui.page_basics import FAILED, log_fault, render, sentence
from skindx.ui.scans.scan_job import LIST as LIST_FILE
from skindx.ui.scans.scan_job import RESULTS

if TYPE_CHECKING:
    from skindx.casebook.casebook import Casebook
    from skindx.ui.scans.scan_jobs import ScanJobs


log = logging.getLogger(__name__)
_Keep = TypeVar("_Keep", bound=Callable[..., str])


def case_keeper(casebook: "Casebook", reports: Reports) -> Callable[..., str]:
    """Return what keeps an answer."""
    import gradio as gr

    @in_spoken_language
    def keep(answer: CaseAnswer | None, event: gr.EventData, request: gr.Request) -> str:
        if answer is None:
            return answered(problem_html(text("keep_expired")))
        owner, form = login_name(request), form_of(event)
        names = {name: form.get(name, "") for name in ("patient", "lesion")}
        given: dict[str, Any] = {**names, **_agreed(form, "consent", "compare", "train")}

        def keep_case() -> tuple[str, str] | None:
            told = answer.diagnosis
            if one_lesion_question(told) and form.get("one_lesion") != "yes":
                raise UserError(joined(text("keep_one_case"), text("keep_one_case_do")))
            asked = [name for name in NAMED_FACTS if name not in told.patient.given]
            new = patient_of({name: form.get(name, "") for name in asked})
            person = told.patient.model_copy(update=new.given)
            day = first_day(photo.taken for photo in told.photos) or date.today()
            require_same_person(casebook, owner, form, PersonSeen(person, day))
            require_same_lesion(casebook, owner, form, person, answer)
            no_person = form.get("no_person") == "yes"
            case = casebook.keep(owner, answer, **given, no_person=no_person, facts=new)
            ids.append(case)
            return casebook.names_of(owner, case)

        ids: list[str] = []
        shown: dict[str, Any] = _keep("case", keep_case)
        shown["place"] = f"#book={ids[0]}" if ids else ""
        if names := shown.pop("names", None):
            shown["kept"] = text("keep_done", patient=names[0], lesion=names[1])
            form = {**form, "patient": names[0], "lesion": names[1]}
        shown |= {"known": known_names(casebook, owner), "sent": form}
        return answered(followup_html(answer, reports, owner, keeps=True, **shown))

    return keep


def scan_keeper(casebook: "Casebook", jobs: "ScanJobs | None") -> Callable[..., str]:
    """Return what keeps a scan that is still on the server."""
    import gradio as gr

    @in_spoken_language
    def keep(event: gr.EventData, request: gr.Request) -> str:
        owner, form = login_name(request), form_of(event)
        names = {name: form.get(name, "") for name in ("patient", "view")}
        given: dict[str, Any] = {**names, **_agreed(form, "consent", "compare")}
        job = jobs.get(form.get("scan", ""), owner) if jobs else None

        def keep_scan() -> tuple[str, str]:
            if job is None or job.state != "done":
                raise UserError(text("keep_scan_gone"))
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
                raise UserError(text("keep_scan_gone")) from None

        outcome = _keep("scan", keep_scan)
        problem, kept = sentence(outcome.get("problem", "")), ""
        if kept_under := outcome.get("names"):
            kept = text("keep_scan_done", patient=kept_under[0], view=kept_under[1])
        return answered(render("scan_kept.html.jinja", kept=kept, problem=problem))

    return keep


class KeptAlready(UserError):  # noqa: N818
    """A case of the lesion has the photo; it is kept again where a person says so."""


def require_same_lesion(
    casebook: "Casebook",
    owner: str,
    form: Mapping[str, str],
    patient: Patient,
    answer: CaseAnswer | None = None,
) -> None:
    """Raise AnotherLesion for facts that earlier cases of the lesion, or its name, contradict.

    Also where the photos look like another lesion than theirs, if the patient agrees to comparing.
    Raise KeptAlready where one of them has one of the photos.
    """
    lesion = form.get("lesion", "")
    earlier = other_cases(casebook, owner, form.get("patient", ""), lesion)
    said, told = another_lesion(lesion, patient, earlier), answer and answer.diagnosis
    if answer and form.get("compare") == "yes":
        said.append(unlike_words(answer.diagnosis, answer.features, earlier))
    said = [one for one in said if one]
    if said and form.get("same_lesion") != "yes":
        raise AnotherLesion(joined(*said, text("keep_differs_do")))
    names = case_names(earlier)
    same = [
        names[case.id]
        for case in earlier
        if told and same_photos(case.diagnosis.photos, told.photos)
    ]
    if same and form.get("again") != "yes":
        raise KeptAlready(joined(text("keep_already", case=same[-1]), text("keep_already_do")))


def known_names(casebook: "Casebook", owner: str) -> dict[str, list[str]]:
    """Return the names of an owner's patients and their lesions; empty for a book that fails."""
    try:
        return casebook.known_names(owner)
    except UserError as error:
        log.warning("%s", casebook_error(error))
        return {}


def in_spoken_language(keep: _Keep) -> _Keep:
    """Return what keeps, in the language that is spoken now: Gradio calls in a task of its own."""
    language = spoken()

    @wraps(keep)
    def kept(*given: Any) -> str:
        with speaking(language):
            return keep(*given)

    return cast("_Keep", kept)


_TICKS = {AnotherLesion: "differs", AnotherPerson: "other_person", KeptAlready: "already"}


def _keep(what: str, keep: Callable[[], tuple[str, str] | None]) -> dict[str, Any]:
    """Keep something, which returns its names; return them as `names`, or `problem`: why not.

    A tick denies `doubt`, that the names say who the patient is, `differs`, that facts speak
    against one lesion, and `other_person`, against one person; after `already`, one keeps a photo
    again.
    """
    try:
        names = keep()
    except IdentifyingName as error:
        return {"problem": joined(sentence(str(error)), text("keep_no_person_do")), "doubt": True}
    except (AnotherLesion, AnotherPerson, KeptAlready) as error:
        return {"problem": str(error), _TICKS[type(error)]: True}
    except UserError as error:
        return {"problem": casebook_error(error)}
    except Exception as error:
        log_fault(log, f"a {what} could not be kept", error)
        return {"problem": FAILED}
    return {"names": names}


def _agreed(form: Mapping[str, str], *names: str) -> dict[str, bool]:
    return {name: form.get(name) == "yes" for name in names}
