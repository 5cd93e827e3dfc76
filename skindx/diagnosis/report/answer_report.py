"""A diagnosis for a person: as PDF to take to a doctor, and in the terminal.

The notice and the next step come first.
"""

import io
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from skindx.diagnosis import advice_figures, answer_texts, decision_texts
from skindx.diagnosis.advice_figures import Metrics, photo_risks
from skindx.diagnosis.case import facts_list
from skindx.diagnosis.case_actions import entries_by_day
from skindx.diagnosis.filing import NOT_FILED, Filing
from skindx.diagnosis.record import (
    CaseAnswer,
    Diagnosis,
    LesionBox,
    Photo,
    PhotoView,
    in_its_language,
    shown_heat,
)
from skindx.diagnosis.report import PdfPart
from skindx.diagnosis.report.patient_page import patient_page
from skindx.diagnosis.report.pdf_sheet import Sheet
from skindx.diagnosis.report.record_page import SHORT_NOTE, record_page
from skindx.diagnosis.report.record_tables import (
    Rows,
    advice_table,
    classes_table,
    conditions_table,
    names_table,
    outcomes_table,
    rest_of,
    thresholds_table,
)
from skindx.diagnosis.scope import as_on_the_page, shown_tier
from skindx.taxonomy import Urgency
from skindx.texts.catalogue import joined, percent, text

if TYPE_CHECKING:
    from PIL import Image


_OUTLINE, _OUTLINE_RIM = (255, 255, 255), (10, 30, 60)
"""Two lines side by side, one of which shows on any skin."""
_HEAT_COLOURS = (
    (68, 1, 84), (70, 50, 126), (54, 92, 141), (39, 127, 142),
    (31, 161, 135), (74, 193, 109), (160, 218, 57), (253, 231, 37),
)  # fmt: skip
"""Eight steps of viridis, in which heat maps are drawn, from little to much."""
_NOTED_ALONE = {
    "written": "record_alone_written",
    "changed": "record_alone_changed",
    "removed": "record_alone_removed",
    "fits": "record_note_fits",
}
_RATES = (70, 18, 36)
"""Widths of the columns of a table of rates."""
_RECORD_SIZES = (1, 0.9, 0.8, 0.75)
"""Sizes of letters that are tried on page 1, which a full record fills."""
_BASIS_SIZES = (1, 0.92, 0.85)
"""Sizes of letters that are tried where the technical basis has an odd number of pages."""
_LEAST_ACROSS, _MOST_ACROSS = 3, 4
"""Images in a row."""
_PHOTO_ROOM_MM, _SIMILAR_ROOM_MM = 75, 55
"""A heading and its first row of images."""


@in_its_language(named=True)
def report_pdf(
    answer: CaseAnswer,
    metrics: Metrics,
    when: datetime,
    filing: Filing = NOT_FILED,
    part: PdfPart = "full",
) -> bytes:
    """Return the report on an answer as PDF; `metrics` are the bundle's own (`Bundle.metrics`).

    Page 1 is a record that one can file, the technical basis follows, and the last sheet of paper
    is for the patient alone. `when` it was answered, in local time with its zone. The same answer
    at the same time gives the same bytes. Raises UserError without fpdf2.
    """
    title = text("paper_title", when=when)
    if part == "patient":
        sheet = Sheet(title, when, filing.footer(when))
    elif part == "short":
        sheet = _record(answer, when, filing, part)
    else:
        sheet = _with_basis(answer, metrics, when, filing)
    patient_page(sheet, answer, filing, when, outlined)
    return sheet.pdf_bytes()


def _with_basis(answer: CaseAnswer, metrics: Metrics, when: datetime, filing: Filing) -> Sheet:
    """Return the record with its technical basis, in smaller letters where they save paper."""
    made: list[Sheet] = []
    while not made or (made[-1].pages % 2 and len(made) < len(_BASIS_SIZES)):
        sheet = _record(answer, when, filing, "full")
        sheet.scale = _BASIS_SIZES[len(made)]
        _basis(sheet, answer, metrics, when, filing)
        made.append(sheet)
    best = min(made, key=lambda one: one.pages + one.pages % 2)  # two pages a sheet of paper
    for other in made:
        if other is not best:
            other.close()
    best.scale = 1
    return best


def _record(answer: CaseAnswer, when: datetime, filing: Filing, part: PdfPart) -> Sheet:
    """Return the record alone, in the largest letters that leave it on one page."""
    for smaller in _RECORD_SIZES:
        sheet = Sheet(text("paper_title", when=when), when, filing.footer(when))
        sheet.scale = smaller
        whole = record_page(sheet, answer, when, filing, outlined, is_short=part == "short")
        if whole or smaller == _RECORD_SIZES[-1]:
            break
        sheet.close()
    sheet.scale = 1
    return sheet


def _basis(
    sheet: Sheet, answer: CaseAnswer, metrics: Metrics, when: datetime, filing: Filing
) -> None:
    """Write the technical basis."""
    diagnosis = answer.diagnosis
    sheet.page(text("record_technical"))
    sheet.text(text("record_technical_why"))
    if len(filing.note) > SHORT_NOTE:
        sheet.section(text("record_note"))
        sheet.text(filing.note)
    if filing.actions:
        sheet.section(text("done_heading"))
        for _, done in entries_by_day(filing.actions):
            sheet.text(done.in_full)
    _versions(sheet, filing, when)
    _conditions(sheet, diagnosis)
    seen = _photos(sheet, answer)
    parts = decision_texts.decided_parts(diagnosis)
    rest = {key: rest_of(diagnosis, said) for key, said in parts.items()}
    unusual = answer_texts.ood_sentence(diagnosis)
    networks = "" if diagnosis.abstained else diagnosis.agreement
    decided = parts.get("decided_photo", ())
    of_photo = (*decided, *seen, networks, diagnosis.use_of_facts, unusual)
    sheet.section(text("decided_heading"))
    sheet.bullets(of_photo, text("decided_photo", n=len(diagnosis.photos)))
    sheet.bullets(rest.get("decided_checklist", ()), text("decided_checklist"))
    _table(sheet, "rules_heading", thresholds_table(diagnosis), (36, 18, 20, 22, 26))
    _similar(sheet, answer, kept=filing.kept)
    begin = sheet.page if _errors(sheet, diagnosis, metrics, rest) else sheet.section
    begin(text("record_model"))
    sheet.bullets([*answer_texts.scope(diagnosis)[1:], *answer_texts.unknown(diagnosis)])
    sheet.section(text("record_sources"))
    above = unusual, advice_figures.measured(metrics)
    sheet.bullets([one for one in answer_texts.basis(diagnosis, metrics) if one not in above])
    if sheet.lacking:
        sheet.bullets([text("paper_letters")])


def _errors(
    sheet: Sheet, diagnosis: Diagnosis, metrics: Metrics, rest: Mapping[str, Sequence[str]]
) -> bool:
    """Write what the evaluation measured, each table with what it does not hold of the `rest`.

    Return whether it has a page of its own.
    """
    advice, names = advice_table(diagnosis), names_table(diagnosis, metrics)
    of_advice, of_names = rest.get("decided_advice", ()), rest.get("decided_list", ())
    holds = *rest.get("decided_holds", ()), *advice_figures.measured_risks(metrics)
    if not (advice or names or of_advice or of_names or holds):
        return False
    begin = sheet.page if advice or names else sheet.section
    begin(text("record_errors"))
    _table(sheet, "decided_advice", advice, _RATES)
    sheet.bullets(of_advice, "" if advice else text("decided_advice"))
    _table(sheet, "outcomes_heading", outcomes_table(diagnosis), (60, 30, 30))
    _table(sheet, "names_heading", names, _RATES)
    sheet.bullets(of_names, "" if names else text("names_heading"))
    _table(sheet, "classes_heading", classes_table(diagnosis, metrics), (36, 12, 32, 32))
    sheet.bullets(holds, text("decided_holds"))
    return bool(advice or names)


def _table(sheet: Sheet, key: str, rows: Rows, widths: tuple[int, ...]) -> None:
    """Write a table, if it has rows, below its heading."""
    if rows:
        fitting = widths[: len(rows[0])]
        sheet.subheading(text(key), sheet.table_mm(rows, fitting))
        sheet.table(rows, fitting)


def _versions(sheet: Sheet, filing: Filing, when: datetime) -> None:
    """Write which diagnoses the reports on this answer stated, each since when and by whom.

    A change of the note alone makes no version, and stands among them in the order of time.
    """
    stated = {one.since for one in filing.versions}
    alone = [one for one in filing.notes if one.when not in stated]
    if filing.status == "preliminary" and not alone:
        return
    sheet.section(text("record_versions"))
    columns = ("column_version", "column_diagnosis", "column_basis", "column_since", "record_by")
    timed, last = [], when  # a version of unknown time follows the one before it
    for place, one in enumerate(filing.versions):
        since, back = one.since or (None if place else when), "record_taken_back"
        last = since or last
        timed.append(
            (
                last,
                str(place + 1),
                one.recorded.words
                if one.recorded
                else text(back if place else "record_answer_alone"),
                one.recorded.basis if one.recorded else "–",
                text("record_seconds", when=since) if since else text("record_unknown"),
                one.by or "–",
            )
        )
    for change in alone:
        at = text("record_seconds", when=change.when)
        said = text(_NOTED_ALONE[change.what])
        timed.append((change.when, "–", said, "–", at, change.who or "–"))
    rows = [row for _, *row in sorted(timed, key=lambda one: one[0])]
    sheet.table([tuple(map(text, columns)), *rows], (12, 28, 27, 35, 18))
    for before in filing.earlier:
        if before.reason:
            sheet.text(text("record_reason", name=before.words, reason=before.reason.rstrip(".")))
    if filing.unrecorded:
        sheet.text(text("record_unrecorded"))


def _conditions(sheet: Sheet, diagnosis: Diagnosis) -> None:
    """Write the candidates, without the column of the set where there is none."""
    abstained = bool(diagnosis.abstained)
    ordered = as_on_the_page(diagnosis)
    ranked = "all_conditions" if ordered == diagnosis.candidates else "others"
    sheet.section(text("resembles" if abstained else ranked))
    has_set = any(candidate.in_set for candidate in diagnosis.candidates)
    rows, widths = conditions_table(diagnosis, ordered, says_named=has_set)
    sheet.table(rows, widths, faint=abstained)
    said = [text("record_also_means")] if has_set else []
    if any(shown_tier(diagnosis, one) != one.urgency for one in diagnosis.candidates):
        said.append(text("no_tier"))
    if (more := len(diagnosis.known) - len(diagnosis.candidates)) > 0 and not abstained:
        rest = max(0.0, 1 - sum(candidate.probability for candidate in diagnosis.candidates))
        said.append(text("rest_together", n=more, share=rest))
    sheet.bullets(said)


def heading(diagnosis: Diagnosis) -> str:
    """Return what the conditions of an answer are."""
    return text("resembles") if diagnosis.abstained else text("may_be")


def _photos(sheet: Sheet, answer: CaseAnswer) -> list[str]:
    """Write what was seen of each photo below it and its heat map, and return the other sentences.

    Photos without heat maps stand on page 1 alone.
    """
    heats, photos = shown_heat(answer), answer.diagnosis.photos
    risks = photo_risks(answer.diagnosis)
    whole = len(photos) > 1 and all(one.square and not one.cut_out for one in photos)
    images, captions, said = [], [], []
    for place, (photo, view, heat, risk) in enumerate(
        zip(photos, answer.views, heats, risks, strict=True)
    ):
        label = f"{text('photo_label', number=place + 1)}."
        found = "" if photo.boxes is None else photo.boxes_found
        off = text("heat_off") if photo.heat_off else ""
        seen = joined(risk, found, "" if whole else photo.seen_part, off)
        said += [joined(label if len(photos) > 1 else "", seen)] if seen else []
        images.append(outlined(photo, view))
        captions.append(joined(label, seen))
        if heat:
            images.append(_heated(view))
            captions.append(f"{label} {text('heat_switch')}.")
    if any(heats):
        sheet.section(text("photos_heading"), _PHOTO_ROOM_MM)
        sheet.images(images, captions, max(_LEAST_ACROSS, min(_MOST_ACROSS, len(images))))
        sheet.legend(_HEAT_COLOURS, text("heat_little"), text("heat_much"))
        sheet.text(answer.diagnosis.heat_words, 8.5, faint=True)
        said = []
    return [*said, *([text("seen_whole", n=len(photos))] if whole else [])]


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
    sheet.section(text("similar_heading"), _SIMILAR_ROOM_MM)
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


@in_its_language(named=True)
def print_diagnosis(diagnosis: Diagnosis, console: Console, *, details: bool = True) -> None:
    """Print a diagnosis: next step first, then the candidates, then what they rest on.

    Without `details` it prints what the page shows unfolded. Names come from a bundle, which is
    untrusted: they are printed as text, never as markup.
    """
    said, step = answer_texts.written(diagnosis, None), diagnosis.next_step
    for warning in said.warnings:
        console.print(Text(warning, style="bold"))
    title, (advice, sooner) = f"{text('step_heading')}  ", step.parts
    console.print(Text.assemble((title, "bold"), (advice, _STYLE[said.given])))
    if sooner:
        console.print(Text(sooner))
    because = joined(step.because, said.checklist, said.combined)
    reasons = [(said.unsure, "bold"), (because, "")]
    for words, style in reversed(reasons) if said.suspected else reasons:
        if words:
            console.print(Text(words, style=style))
    console.print(Text(joined(text("cannot_rule_out"), *said.errors)))
    console.print(_candidates(diagnosis, said.tiers))
    if held := joined(said.less_sure, said.set_sentence, *said.weak_spots, diagnosis.agreement):
        console.print(Text(held))
    for number, (photo, risk) in enumerate(zip(diagnosis.photos, said.photo_risks, strict=True), 1):
        several = len(diagnosis.photos) > 1
        which = f"{text('photo_label', number=number)}." if several else ""
        off = text("heat_off") if photo.heat_off else ""
        seen = (photo.boxes_found, photo.seen_part, *photo.remarks, off)
        console.print(Text(joined(which, risk, *seen)))
        for box in (details and photo.boxes) or ():
            left, top, right, bottom = (round(edge) for edge in (box.x1, box.y1, box.x2, box.y2))
            place = {"left": left, "top": top, "right": right, "bottom": bottom}
            console.print(
                Text(f"  {text('box_corners', label=box.label, score=box.score, **place)}")
            )
    known = joined(said.knows, answer_texts.learned_from(diagnosis))
    if diagnosis.patient.model_fields_set and (facts := facts_list(diagnosis.patient)):
        console.print(Text(joined(text("facts_given", facts=facts), diagnosis.use_of_facts)))
    if details:
        console.print(Text(joined(known, *said.unknown)))
        console.print(Text(joined(*chain(*said.decided.values())), style="dim"))
        if diagnosis.similar:
            nearest = [f"{case.name} ({case.basis})" for case in diagnosis.similar]
            console.print(Text(text("similar_names", names=nearest)))
        digests = answer_texts.digests(diagnosis)
        console.print(Text(joined(*said.basis[:2], digests, text("basis_short")), style="dim"))
        console.print(Text(diagnosis.notice, style="bold"))
        return
    console.print(Text(known))
    console.print(Text(diagnosis.notice, style="bold"))
    console.print(Text(text("details_option"), style="dim"))


def _chip(tier: Urgency) -> str:
    return text("tier_not_stated") if tier == "unknown" else text(f"tier_{tier}").lower()


def _candidates(diagnosis: Diagnosis, tiers: Mapping[str, Urgency | None]) -> Table:
    """Return the candidates; without set and bars where the model abstains."""
    abstained = bool(diagnosis.abstained)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    tier_and_share = (text(one).lower() for one in ("column_urgency", "column_probability"))
    columns = ("", heading(diagnosis), text("column_icd10"), *tier_and_share)
    for column in columns[: -1 if abstained else None]:
        table.add_column(column)
    for candidate in diagnosis.listed:
        tier = tiers[candidate.key]
        bar = "█" * round(candidate.probability * _BAR)
        shown = f"{percent(candidate.probability):>6} {bar}"
        table.add_row(
            Text("●" if candidate.in_set and not abstained else " "),
            Text(candidate.name),
            Text(candidate.icd10 or "–"),
            Text(_chip(tier), style=_STYLE[tier]) if tier else Text("–"),
            *([] if abstained else [Text(shown)]),
            style="dim" if abstained else None,
        )
    return table
