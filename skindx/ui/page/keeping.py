"""What keeps an answer, or a scan, in the case book when its form is sent."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from skindx.casebook.casebook import Casebook
from skindx.core.errors import UserError
from skindx.diagnosis.record import CaseAnswer
from skindx.ui.asgi import login_name
from skindx.ui.faults import FAILED, log_fault
from skindx.ui.html import render, sentence
from skindx.ui.page.casebook_error import casebook_error
from skindx.ui.page.followup import followup_html
from skindx.ui.page.result import problem_html
from skindx.ui.reports.sealed import Reports
from skindx.ui.scanning.order import LIST, RESULTS

if TYPE_CHECKING:
    from skindx.ui.scanning.jobs import ScanJobs

log = logging.getLogger(__name__)

_NO_SCAN = "this scan is no longer on the server and cannot be kept; scan the photo again."


def case_keeper(casebook: Casebook, reports: Reports) -> Callable[..., str]:
    """Return what keeps an answer."""
    import gradio as gr

    def keep(answer: CaseAnswer | None, event: gr.EventData, request: gr.Request) -> str:
        if answer is None:
            return problem_html(
                "This answer has expired and cannot be kept; ask again, then keep the new answer."
            )
        owner, sent = login_name(request), event._data if isinstance(event._data, dict) else {}
        patient, lesion = str(sent.get("patient", "")), str(sent.get("lesion", ""))
        try:
            casebook.keep(
                owner,
                answer,
                patient=patient,
                lesion=lesion,
                consent=sent.get("consent") == "yes",
                compare=sent.get("compare") == "yes",
                train=sent.get("train") == "yes",
            )
        except UserError as error:
            return followup_html(answer, reports, owner, keeps=True, problem=casebook_error(error))
        except Exception as error:
            log_fault(log, "a case could not be kept", error)
            return followup_html(answer, reports, owner, keeps=True, problem=FAILED)
        kept = f"Kept in the case book under {patient.strip()}, {lesion.strip()}."
        return followup_html(answer, reports, owner, keeps=True, kept=kept)

    return keep


def scan_keeper(casebook: Casebook, jobs: "ScanJobs | None") -> Callable[..., str]:
    """Return what keeps a scan that is still on the server."""
    import gradio as gr

    def keep(event: gr.EventData, request: gr.Request) -> str:
        sent = event._data if isinstance(event._data, dict) else {}
        owner = login_name(request)
        patient, view = str(sent.get("patient", "")), str(sent.get("view", ""))
        job = jobs.get(str(sent.get("scan", "")), owner) if jobs else None
        try:
            if job is None or job.state != "done":
                raise UserError(_NO_SCAN)
            casebook.scans.keep(
                owner,
                job.folder / RESULTS,
                patient=patient,
                view=view,
                consent=sent.get("consent") == "yes",
                compare=sent.get("compare") == "yes",
                listing=(job.folder / LIST).read_text(encoding="utf-8"),
            )
        except UserError as error:
            return _said(problem=casebook_error(error))
        except FileNotFoundError:  # deleted meanwhile
            return _said(problem=_NO_SCAN)
        except Exception as error:
            log_fault(log, "a scan could not be kept", error)
            return _said(problem=FAILED)
        return _said(kept=f"Kept in the case book under {patient.strip()}, {view.strip()}.")

    return keep


def _said(*, kept: str = "", problem: str = "") -> str:
    return render("scan_kept.html.jinja", kept=kept, problem=sentence(problem))
