"""A diagnosis for a person: as PDF to take to a doctor, and in the terminal.

The notice and the next step come first.
"""

import io
from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from skindx.diagnosis import answer_texts
from skindx.diagnosis.advice_figures import Metrics
from skindx.diagnosis.case import facts_list
from skindx.diagnosis.filing import NOT_FILED, Filing
from skindx.diagnosis.pdf_sheet import Sheet
from skindx.diagnosis.record import CaseAnswer, Diagnosis, LesionBox, Photo, PhotoView
from skindx.diagnosis.record_page import patient_half, record_page
from skindx.diagnosis.scope import knows, shown_tier
from skindx.taxonomy import Urgency
from skindx.texts.catalogue import joined, percent, text

if TYPE_CHECKING:
    from PIL import Image


_OUTLINE, _OUTLINE_RIM = (255, 255, 255), (10, 30, 60)
"""Two lines side by side, one of which shows on any skin."""
_TWICE = 2
_PHOTO_ROOM_MM, _SIMILAR_ROOM_MM = 95, 55
"""A heading and its first row of images."""


def report_pdf(
    answer: CaseAnswer, metrics: Metrics, when: datetime, filing: Filing = NOT_FILED
) -> bytes:
    """Return the report on an answer as PDF; `metrics` are the bundle's own (`Bundle.metrics`).

    Page 1 is a record that one can file, page 2 begins with half a page for the patient, and the
    technical basis follows. `when` it was answered, in local time with its zone. The same answer at
    the same time gives the same bytes. Raises UserError without fpdf2.
    """
    diagnosis = answer.diagnosis
    sheet = Sheet(text("paper_title", when=when), when)
    record_page(sheet, answer, when, filing, outlined)
    patient_half(sheet, diagnosis, filing)
    sheet.heading(text("record_technical"))
    _conditions(sheet, diagnosis)
    if decided := " ".join(answer_texts.decided(diagnosis)):
        sheet.heading(text("decided_heading"))
        sheet.text(decided, 8, faint=True)
    _photos(sheet, answer)
    _similar(sheet, answer, kept=filing.kept)
    if facts := facts_list(diagnosis.patient):
        sheet.heading(text("facts_heading"))
        sheet.text(joined(text("facts_given", facts=facts), diagnosis.use_of_facts))
    _source(sheet, diagnosis, metrics)
    if sheet.lacking:
        sheet.text(text("paper_letters"), bold=True)
    return sheet.pdf_bytes()


def _conditions(sheet: Sheet, diagnosis: Diagnosis) -> None:
    """Write the candidates; without guarantee and agreement where the model abstains.

    Without the column of the set where there is none.
    """
    abstained = bool(diagnosis.abstained)
    sheet.heading(heading(diagnosis))
    columns = ("column_condition", "column_icd10", "column_urgency", "column_probability")
    rows = [(text("in_set"), *map(text, columns))]
    rows += [
        (
            "yes" if candidate.in_set else "",
            f"{candidate.name}. {candidate.description}".strip(),
            candidate.icd10 or "–",
            shown_tier(diagnosis, candidate) or "–",
            percent(candidate.probability),
        )
        for candidate in diagnosis.candidates
    ]
    if abstained or not any(candidate.in_set for candidate in diagnosis.candidates):
        sheet.table([row[1:] for row in rows], (69, 12, 12, 14), faint=abstained)
    else:
        sheet.table(rows, (13, 56, 12, 12, 14))
    if any(shown_tier(diagnosis, one) != one.urgency for one in diagnosis.candidates):
        sheet.text(text("no_tier"), faint=True)
    if (rest := 1 - sum(candidate.probability for candidate in diagnosis.candidates)) > 0.01:
        sheet.text(text("rest_together", share=rest))
    if not abstained:
        sheet.text(diagnosis.agreement, faint=True)
    known = (knows(diagnosis.known), answer_texts.learned_from(diagnosis))
    sheet.text(joined(*known, *answer_texts.unknown(diagnosis)))


def heading(diagnosis: Diagnosis) -> str:
    """Return what the conditions of an answer are."""
    return text("resembles") if diagnosis.abstained else text("may_be")


def _photos(sheet: Sheet, answer: CaseAnswer) -> None:
    sheet.heading(text("photos_heading"), _PHOTO_ROOM_MM)
    images, captions = [], []
    for place, (photo, view) in enumerate(zip(answer.diagnosis.photos, answer.views, strict=True)):
        images.append(outlined(photo, view))
        label = f"{text('photo_label', number=place + 1)}."
        captions.append(joined(label, photo.boxes_found, photo.seen_part, *photo.remarks))
        if view.heat:
            images.append(_heated(view))
            captions.append(joined(label, answer.diagnosis.heat_words))
    sheet.images(images, captions, _TWICE)


def _similar(sheet: Sheet, answer: CaseAnswer, *, kept: bool) -> None:
    similar = answer.diagnosis.similar
    if kept:
        names = [f"{case.name} ({case.basis})" for case in similar]
        sheet.text(text("record_heat_not_kept"), faint=True)
        if names:
            sheet.text(text("similar_names", names=names))
        return
    if not similar:
        return
    sheet.heading(text("similar_heading"), _SIMILAR_ROOM_MM)
    ranked = list(enumerate(zip(similar, answer.thumbnails, strict=True), 1))
    shown = [
        (opened(jpeg), f"{rank}. {case.name} ({case.basis}). {', '.join(filter(None, whose))}")
        for rank, (case, jpeg) in ranked
        if jpeg and (whose := (case.credit, case.licence))
    ]
    sheet.text(text("similar_first"), faint=True)
    if shown:
        sheet.images([image for image, _ in shown], [caption for _, caption in shown], 6)
    hidden = [f"{rank}. {case.name} ({case.basis})" for rank, (case, jpeg) in ranked if not jpeg]
    if hidden:
        sheet.text(f"{text('similar_hidden', n=len(hidden))} {', '.join(hidden)}", faint=True)


def _source(sheet: Sheet, diagnosis: Diagnosis, metrics: Metrics) -> None:
    sheet.heading(text("basis_heading"))
    *sentences, hashes = answer_texts.basis(diagnosis, metrics)
    for sentence in sentences:
        sheet.text(sentence)
    sheet.text(hashes, faint=True)


def opened(data: bytes) -> "Image.Image":
    from PIL import Image

    return Image.open(io.BytesIO(data))


def outlined(photo: Photo, view: PhotoView) -> "Image.Image":
    from PIL import ImageDraw

    image = opened(view.jpeg).convert("RGB")
    scale = image.width / photo.width
    draw = ImageDraw.Draw(image)
    thick = max(1, image.width // 250)
    if photo.cut_out:
        square = [edge * scale for edge in photo.cut_out]
        draw.rectangle(square, outline=_OUTLINE_RIM, width=max(2, thick))
        draw.rectangle([edge + 1 for edge in square], outline=_OUTLINE, width=1)
    for box in photo.boxes or ():
        corners = _corners(box, scale)
        draw.rectangle(corners, outline=_OUTLINE_RIM, width=3 * thick)
        draw.rectangle(
            [corner + sign * thick for corner, sign in zip(corners, (1, 1, -1, -1), strict=True)],
            outline=_OUTLINE,
            width=thick,
        )
    return image


def _corners(box: LesionBox, scale: float) -> list[float]:
    """Return left, top, right, bottom, wide enough for the lines to be drawn."""
    left, top = box.x1 * scale, box.y1 * scale
    return [left, top, max(box.x2 * scale, left + 12), max(box.y2 * scale, top + 12)]


def _heated(view: PhotoView) -> "Image.Image":
    from PIL import Image

    image = opened(view.jpeg).convert("RGBA")
    heat = opened(view.heat).convert("RGBA").resize(image.size, Image.Resampling.BILINEAR)
    return Image.alpha_composite(image, heat).convert("RGB")


_STYLE: dict[Urgency, str] = {
    "urgent": "bold red",
    "soon": "yellow",
    "routine": "green",
    "unknown": "cyan",
}
_BAR = 20


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """Print a diagnosis: next step first, then the candidates, then what they rest on.

    Names come from a bundle, which is untrusted: they are printed as text, never as markup.
    """
    step = diagnosis.next_step
    for warning in answer_texts.warnings(diagnosis):
        console.print(Text(warning, style="bold"))
    console.print(
        Text.assemble((f"{text('step_heading')}  ", "bold"), (step.advice, _STYLE[step.urgency]))
    )
    console.print(Text(step.because))
    if unsure := answer_texts.unsure(diagnosis):
        console.print(Text(unsure, style="bold"))
    console.print(Text(joined(text("cannot_rule_out"), *answer_texts.errors(diagnosis))))
    console.print(_candidates(diagnosis))
    if held := joined(answer_texts.set_sentence(diagnosis), diagnosis.agreement):
        console.print(Text(held))
    for number, photo in enumerate(diagnosis.photos, 1):
        several = len(diagnosis.photos) > 1
        which = f"{text('photo_label', number=number)}." if several else ""
        console.print(Text(joined(which, photo.boxes_found, photo.seen_part, *photo.remarks)))
        for box in photo.boxes or ():
            left, top, right, bottom = (round(edge) for edge in (box.x1, box.y1, box.x2, box.y2))
            place = {"left": left, "top": top, "right": right, "bottom": bottom}
            console.print(
                Text(f"  {text('box_corners', label=box.label, score=box.score, **place)}")
            )
    known = (knows(diagnosis.known), answer_texts.learned_from(diagnosis))
    console.print(Text(joined(*known, *answer_texts.unknown(diagnosis))))
    console.print(Text(joined(*answer_texts.decided(diagnosis)), style="dim"))
    if diagnosis.similar:
        nearest = [f"{case.name} ({case.basis})" for case in diagnosis.similar]
        console.print(Text(text("similar_names", names=nearest)))
    if facts := facts_list(diagnosis.patient):
        console.print(Text(joined(text("facts_given", facts=facts), diagnosis.use_of_facts)))
    console.print(Text(joined(*answer_texts.basis(diagnosis, None)[:3]), style="dim"))
    console.print(Text(diagnosis.notice, style="bold"))


def _candidates(diagnosis: Diagnosis) -> Table:
    """Return the candidates; without set and bars where the model abstains."""
    abstained = bool(diagnosis.abstained)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("", heading(diagnosis), "ICD-10", "urgency", "probability"):
        table.add_column(column)
    for candidate in diagnosis.candidates:
        tier = shown_tier(diagnosis, candidate)
        bar = "" if abstained else "█" * round(candidate.probability * _BAR)
        table.add_row(
            Text("●" if candidate.in_set and not abstained else " "),
            Text(candidate.name),
            Text(candidate.icd10 or "–"),
            Text(tier, style=_STYLE[tier]) if tier else Text("–"),
            Text(f"{percent(candidate.probability):>6} {bar}"),
            style="dim" if abstained else None,
        )
    return table
