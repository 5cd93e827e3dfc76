"""A photo of many: its answer as a row, for the page, whose queue of photos is in the browser.

The browser sends one photo after the other and keeps the rows; the server keeps nothing. A client
has two photos at a time here, so that many of its photos leave the others' cases their turn.
"""

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from skindx.api.answer_file import Row, csv_cells
from skindx.core.errors import UserError
from skindx.diagnosis.answer_texts import modality_warning, to_say
from skindx.diagnosis.case import Case
from skindx.diagnosis.checklist_advice import urgency_given
from skindx.diagnosis.photo_checks import Refused, file_hash
from skindx.diagnosis.photo_list import FILE
from skindx.diagnosis.record import CaseAnswer
from skindx.diagnosis.scope import unjudged
from skindx.models.bundle.bundle import Bundle
from skindx.models.bundle.use_limits import use_columns
from skindx.texts.catalogue import joined
from skindx.ui.answers_page import shown_row
from skindx.ui.diagnosis_pool import Busy, Diagnoser
from skindx.ui.http.api_schemas import problem
from skindx.ui.http.forms import read_form
from skindx.ui.http.request_limits import ConnectionQuota, client_of

if TYPE_CHECKING:
    from fastapi import APIRouter

PATH = "/answer-row"
AT_A_TIME = 2
"""Photos of one client."""
_NAMES = (
    "file sha256 width height refused reason urgency advice decided_by abstained first probability "
    "set urgent_risk urgent_threshold soon_risk soon_threshold disagreement familiarity remarks"
)
COLUMNS = tuple(_NAMES.split())
"""Those of a prediction, without the probabilities of classes and what facts alone give."""
_ONE_PHOTO = (
    "send one file named `photo`, its name as the field `file`, and as `modality` how it was taken."
)
_YOURS = "your other photos are answered first."


def answer_row_routes(diagnoser: Diagnoser, bundle: Bundle) -> "APIRouter":
    from fastapi import APIRouter

    router = APIRouter()
    shares = ConnectionQuota(AT_A_TIME)
    names = {one.key: one.name for one in bundle.taxonomy.classes}
    use = use_columns(bundle.spec.use)

    @router.post(PATH, include_in_schema=False)
    async def answer_row(request: Request) -> Response:
        client = client_of(request.scope)
        if shares.exceeded(client, 1):
            return problem(429, _YOURS, retry_after_s=1)
        shares.add(client, 1)
        try:
            photos, fields = await read_form(request)
            if len(photos) != 1 or set(fields) - {FILE, "modality"}:
                return problem(400, _ONE_PHOTO)
            modality: Any = fields.get("modality", "")
            answer = await _answer(diagnoser, Case(photos, modality=modality))
        except ClientDisconnect:
            return Response(status_code=400)
        except Busy as error:
            return problem(503, str(error), retry_after_s=error.retry_after_s)
        except UserError as error:  # of the form
            return problem(400, str(error))
        finally:
            shares.add(client, -1)
        hashed = {"sha256": file_hash(photos[0])}
        row = {FILE: fields.get(FILE, ""), **use, **hashed, **row_of(answer)}
        shown = shown_row(row, "", names) | _beside_row(answer)
        return JSONResponse({"shown": shown, "csv": csv_line(row, (*COLUMNS, *use))})

    return router


async def _answer(diagnoser: Diagnoser, case: Case) -> CaseAnswer | UserError:
    """Return the answer to a case, or why there is none. Raises Busy."""
    try:
        return await diagnoser.diagnose(case)
    except Busy:
        raise
    except UserError as error:
        return error


def _beside_row(answer: CaseAnswer | UserError) -> dict[str, Any]:
    """Return what the page shows that is no column: what may be said of a photo, and what was."""
    if isinstance(answer, UserError):
        return {"to_say": to_say(answer.unless if isinstance(answer, Refused) else "")}
    [photo] = answer.diagnosis.photos
    warning = joined(*modality_warning(answer.diagnosis))
    return {"warning": warning, "remarks": " ".join(photo.remarks)}


def row_of(answer: CaseAnswer | UserError) -> Row:
    """Return the columns of a prediction, but for file and hash, of a case of one photo."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS[2:])
    if isinstance(answer, UserError):
        seen = answer.refusals[0].seen if isinstance(answer, Refused) else None
        gate = answer.gate if isinstance(answer, Refused) else "failed"
        size = {"width": seen.width, "height": seen.height} if seen else {}
        return row | size | {"refused": gate, "reason": unjudged(str(answer))}
    diagnosis = answer.diagnosis
    [photo], first = diagnosis.photos, diagnosis.candidates[0]
    for name, rule in (("urgent", diagnosis.urgent_risk), ("soon", diagnosis.soon_risk)):
        if rule:
            row |= {f"{name}_risk": rule.risk, f"{name}_threshold": rule.threshold}
    return row | {
        "width": photo.width,
        "height": photo.height,
        "urgency": urgency_given(diagnosis),
        "advice": diagnosis.next_step.advice,
        "decided_by": diagnosis.next_step.decided_by,
        "abstained": diagnosis.abstained,
        "first": first.key,
        "probability": first.probability,
        "set": [one.key for one in diagnosis.candidates if one.in_set]
        if diagnosis.promise
        else None,
        "disagreement": diagnosis.disagreement,
        "familiarity": diagnosis.familiarity,
        "remarks": joined(*modality_warning(diagnosis), *photo.remarks),
    }


def csv_line(row: Row, columns: Sequence[str] = COLUMNS) -> str:
    """Return a row as a line of the file that the page offers."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(csv_cells(row, columns))
    return line.getvalue()
