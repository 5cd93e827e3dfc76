"""After the answer: a report to take along, and a place in the case book for those who want it."""

from datetime import datetime
from typing import Any

from skindx.casebook.case import CONSENT
from skindx.diagnosis.answer import Answer
from skindx.diagnosis.report.pdf import report_pdf
from skindx.errors import UserError
from skindx.ui.html import data_url, render, sentence


def followup_html(
    answer: Answer,
    metrics: dict[str, Any] | None,
    *,
    keeps: bool,
    kept: str = "",
    problem: str = "",
) -> str:
    """Return the follow-up; the report is in the HTML itself and leaves nothing on the server.

    `keeps`: there is a case book; `kept` says that this answer is in it, `problem` why it is not.
    """
    pdf, no_pdf, now = "", "", datetime.now().astimezone()
    try:
        pdf = data_url(report_pdf(answer, metrics, now), "application/pdf")
    except UserError as error:
        no_pdf = sentence(str(error))
    return render(
        "followup.html.jinja",
        pdf=pdf,
        no_pdf=no_pdf,
        name=f"skindx-{now:%Y-%m-%d-%H%M}.pdf",
        keeps=keeps,
        kept=kept,
        problem=sentence(problem),
        consent=CONSENT,
    )
