"""After the answer: a report to take along, and a place in the case book for those who want it."""

from datetime import datetime

from skindx.casebook.kept_case import CASE_CONSENTS
from skindx.core.errors import UserError
from skindx.core.machine import require_extra
from skindx.diagnosis.record import CaseAnswer
from skindx.ui.html import render, sentence
from skindx.ui.reports.sealed import Reports


def followup_html(
    answer: CaseAnswer,
    reports: Reports,
    user: str,
    *,
    keeps: bool,
    kept: str = "",
    problem: str = "",
) -> str:
    """Return the follow-up; what a report is made of is in the HTML, sealed for `user`.

    `keeps`: there is a case book; `kept` says that this answer is in it, `problem` why it is not.
    """
    sealed, no_pdf, now = "", "", datetime.now().astimezone()
    try:
        require_extra("app", "fpdf", purpose="a PDF report")
        sealed = reports.sealed(answer, now, user)
    except UserError as error:
        no_pdf = sentence(str(error))
    return render(
        "followup.html.jinja",
        sealed=sealed,
        no_pdf=no_pdf,
        name=f"skindx-{now:%Y-%m-%d-%H%M}.pdf",
        keeps=keeps,
        kept=kept,
        problem=sentence(problem),
        consents=CASE_CONSENTS,
    )
