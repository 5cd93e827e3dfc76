"""A diagnosis for a person: as PDF to take to a doctor, and in the terminal.

The notice and the next step come first.
"""

import io
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from skindx.diagnosis.case import patient_facts
from skindx.diagnosis.guarantees import (
    how_combined,
    measured,
    risk_errors,
    set_errors,
    theory,
)
from skindx.diagnosis.pdf_sheet import Sheet
from skindx.diagnosis.record import (
    CANNOT_RULE_OUT,
    NEAREST_FIRST,
    CaseAnswer,
    Diagnosis,
    LesionBox,
    Photo,
    PhotoView,
    percent,
)
from skindx.diagnosis.scope import Scope, lacks, shown_tier
from skindx.taxonomy import Urgency

if TYPE_CHECKING:
    from PIL import Image


_NOTICE_FILL = (255, 243, 214)
_FILL: dict[Urgency, tuple[int, int, int]] = {
    "urgent": (252, 226, 224),
    "soon": (255, 238, 205),
    "routine": (226, 240, 232),
    "unknown": (226, 234, 244),
}
_OUTLINE, _OUTLINE_RIM = (255, 255, 255), (10, 30, 60)
"""Two lines side by side, one of which shows on any skin."""
_TWICE = 2
_PHOTO_ROOM_MM, _SIMILAR_ROOM_MM = 95, 55
"""A heading and its first row of images."""
_NO_TIER = "Where no urgency stands, “routine” would be read as advice to wait, which is not given."
_LACKING = (
    "Some letters above are printed as “?” or without their accents, because no font on the "
    "computer that made this report has them."
)


def report_pdf(answer: CaseAnswer, metrics: dict[str, Any] | None, when: datetime) -> bytes:
    """Return the report on an answer as PDF; `metrics` are the bundle's own (`Bundle.metrics`).

    The same answer at the same time gives the same bytes. Raises UserError without fpdf2.
    """
    diagnosis = answer.diagnosis
    sheet = Sheet(f"skindx report, {when:%d %B %Y, %H:%M %Z}".strip(), when)
    sheet.text("skindx report", 16, bold=True)
    sheet.text(f"Preliminary. Made on {when:%d %B %Y, %H:%M %Z}".strip(), faint=True)
    sheet.text(diagnosis.notice, 10, bold=True, fill=_NOTICE_FILL)
    if diagnosis.source.learned_from:
        sheet.text(diagnosis.source.learned_from, 10, bold=True, fill=_NOTICE_FILL)
    step = diagnosis.next_step
    sheet.heading(f"What to do next: {step.urgency.replace('unknown', 'urgency unknown')}")
    sheet.text(step.advice, 12, bold=True, fill=_FILL[step.urgency])
    sheet.text(step.because)
    sheet.text(CANNOT_RULE_OUT, bold=True)
    if errors := risk_errors(diagnosis):
        sheet.text(errors)
    if diagnosis.abstained:
        sheet.text(f"The model does not know. {diagnosis.abstained}", bold=True)
    _conditions(sheet, diagnosis)
    if decided := " ".join(theory(diagnosis)):
        sheet.heading("How this is decided")
        sheet.text(decided, 7, faint=True)
    _photos(sheet, answer)
    _similar(sheet, answer)
    if facts := patient_facts(diagnosis.patient):
        sheet.heading("Information given about the person")
        sheet.text("; ".join(f"{name}: {value}" for name, value in facts) + ".")
        sheet.text(diagnosis.use_of_facts)
    _source(sheet, diagnosis, metrics)
    if sheet.lacking:
        sheet.text(_LACKING, bold=True)
    return sheet.pdf_bytes()


def _conditions(sheet: Sheet, diagnosis: Diagnosis) -> None:
    """Write the candidates; without guarantee and agreement where the model abstains.

    Without the column of the set where there is none.
    """
    abstained = bool(diagnosis.abstained)
    sheet.heading(heading(diagnosis))
    rows = [("in the set", "condition", "ICD-10", "urgency", "probability")]
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
        sheet.text(_NO_TIER, faint=True)
    if (rest := 1 - sum(candidate.probability for candidate in diagnosis.candidates)) > 0.01:
        sheet.text(f"All other conditions that the model knows, together: {percent(rest)}.")
    if not abstained:
        sheet.text(set_errors(diagnosis))
        sheet.text(diagnosis.agreement, faint=True)
    for sentence in filter(None, (Scope(diagnosis.known).text, lacks(diagnosis.unknown_urgent))):
        sheet.text(sentence)


def heading(diagnosis: Diagnosis) -> str:
    """Return what the conditions of an answer are."""
    return "What it resembles most (not an answer)" if diagnosis.abstained else "What it may be"


def _photos(sheet: Sheet, answer: CaseAnswer) -> None:
    sheet.heading("Photos", _PHOTO_ROOM_MM)
    images, captions = [], []
    for place, (photo, view) in enumerate(zip(answer.diagnosis.photos, answer.views, strict=True)):
        images.append(outlined(photo, view))
        words = (f"Photo {place + 1}.", photo.boxes_found, photo.seen_part, *photo.remarks)
        captions.append(" ".join(filter(None, words)))
        if view.heat:
            images.append(_heated(view))
            captions.append(
                f"Photo {place + 1}: where the networks see signs of "
                f"{answer.diagnosis.heat_of}; Grad-CAM, yellow the most."
            )
    sheet.images(images, captions, _TWICE)
    if answer.diagnosis.no_heat:
        sheet.text(answer.diagnosis.no_heat, faint=True)


def _similar(sheet: Sheet, answer: CaseAnswer) -> None:
    similar = answer.diagnosis.similar
    if not similar:
        return
    sheet.heading("Similar images of the training data", _SIMILAR_ROOM_MM)
    ranked = list(enumerate(zip(similar, answer.thumbnails, strict=True), 1))
    shown = [
        (opened(jpeg), f"{rank}. {case.name} ({case.basis}). {', '.join(filter(None, whose))}")
        for rank, (case, jpeg) in ranked
        if jpeg and (whose := (case.credit, case.licence))
    ]
    sheet.text(NEAREST_FIRST, faint=True)
    if shown:
        sheet.images([image for image, _ in shown], [caption for _, caption in shown], 6)
    hidden = [f"{rank}. {case.name} ({case.basis})" for rank, (case, jpeg) in ranked if not jpeg]
    if hidden:
        sheet.text("Not shown, because of their licences: " + ", ".join(hidden) + ".", faint=True)


def _source(sheet: Sheet, diagnosis: Diagnosis, metrics: dict[str, Any] | None) -> None:
    sheet.heading("Basis of this answer")
    *sentences, hashes = basis(diagnosis, metrics)
    for sentence in sentences:
        sheet.text(sentence)
    sheet.text(hashes, faint=True)


def basis(diagnosis: Diagnosis, metrics: dict[str, Any] | None) -> list[str]:
    """Return what an answer rests on, in sentences; the last one names the photo files."""
    source = diagnosis.source
    hashes = ", ".join(photo.sha256[:16] for photo in diagnosis.photos)
    sentences = (
        f"Bundle {source.name} of {source.created[:10]}, version {source.version[:16]}, "
        f"{source.digests}; "
        f"taxonomy {source.taxonomy}, {source.review}.",
        source.use.licensed if source.use else "",
        source.expects,
        source.adapted,
        ""
        if source.calibrated
        else "Its probabilities were not calibrated: expect them to be too high.",
        how_combined(diagnosis),
        diagnosis.mix,
        measured(metrics) or "How often this bundle is right has not been measured.",
        f"The SHA-256 hashes of the photo files begin with {hashes}.",
    )
    return [sentence for sentence in sentences if sentence]


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
    step, source = diagnosis.next_step, diagnosis.source
    if source.learned_from:
        console.print(Text(source.learned_from, style="bold"))
    console.print(Text.assemble(("Next step  ", "bold"), (step.advice, _STYLE[step.urgency])))
    console.print(Text(step.because, style="dim"))
    for sentence in filter(None, (CANNOT_RULE_OUT, risk_errors(diagnosis))):
        console.print(Text(sentence))
    if diagnosis.abstained:
        console.print(Text(f"The model does not know. {diagnosis.abstained}", style="bold"))
    console.print(_candidates(diagnosis))
    for sentence in filter(None, (set_errors(diagnosis), diagnosis.agreement)):
        console.print(Text(sentence))
    for sentence in filter(None, (*theory(diagnosis), how_combined(diagnosis), diagnosis.mix)):
        console.print(Text(sentence, style="dim"))
    for number, photo in enumerate(diagnosis.photos, 1):
        which = f"Photo {number}: " if len(diagnosis.photos) > 1 else ""
        console.print(Text(which + " ".join((photo.boxes_found, *photo.remarks))))
        for box in photo.boxes or ():
            corners = f"({box.x1:.0f}, {box.y1:.0f}) to ({box.x2:.0f}, {box.y2:.0f})"
            console.print(Text(f"  {box.label}, detector score {box.score:.2f}, {corners} px"))
    if named := Scope(diagnosis.known).text:
        console.print(Text(named, style="dim"))
    for sentence in filter(None, (lacks(diagnosis.unknown_urgent), source.expects, source.adapted)):
        console.print(Text(sentence))
    if diagnosis.similar:
        nearest = ", ".join(f"{case.name} ({case.basis})" for case in diagnosis.similar)
        console.print(Text(f"Most similar training images, nearest first: {nearest}."))
    if facts := patient_facts(diagnosis.patient):
        given = "; ".join(f"{name} {value}" for name, value in facts)
        console.print(Text(f"Given: {given}. {diagnosis.use_of_facts}"))
    console.print(
        Text(
            f"Bundle {source.name}, version {source.version[:12]}, "
            f"{source.digests}, {source.created}; "
            f"taxonomy {source.taxonomy}: {source.review}.",
            style="dim",
        )
    )
    console.print(Text(diagnosis.notice, style="bold"))


def _candidates(diagnosis: Diagnosis) -> Table:
    """Return the candidates; without set and bars where the model abstains."""
    abstained = bool(diagnosis.abstained)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("", "resembles most" if abstained else "may be", "ICD-10", "urgency"):
        table.add_column(column)
    table.add_column("probability")
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
