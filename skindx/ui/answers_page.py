"""Answers about many photos as one HTML page that needs nothing else: urgent ones first.

The page needs no script to be read. It shows photos, so it is as private as the answers.
"""

import heapq
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skindx.api.answer_file import KINDS, AnswerCounts, AnswerPart, Row, kind_of
from skindx.core.errors import UserError, needs_room
from skindx.core.machine import cpu_count
from skindx.core.private_files import write_private
from skindx.core.progress import Progress
from skindx.core.text import csp_hash, inlined
from skindx.data.loader.load import work_ahead
from skindx.diagnosis import decision_texts
from skindx.diagnosis.advice_figures import measured
from skindx.diagnosis.bundle_statement import measured_advice, mix_text, source_of
from skindx.diagnosis.photo_checks import open_photo, read_photo
from skindx.diagnosis.photo_list import FILE, ListedPhoto, PhotoList
from skindx.diagnosis.record import notice
from skindx.diagnosis.scope import Scope
from skindx.imaging.resize import small_jpeg
from skindx.models.bundle.model_card import not_useful_yet
from skindx.taxonomy import advice_for
from skindx.texts.catalogue import joined, percent, text, told_apart, word
from skindx.ui.page_basics import render

if TYPE_CHECKING:
    from skindx.diagnosis.predictor import Predictor

MOST_SHOWN = 2000
"""Photos of the page, urgent ones first: more would be tens of megabytes."""
THUMBNAIL_PX = 112


def check_page(page: Path | None) -> None:
    """Raise UserError for a summary that would not be a page."""
    if page is not None and (page.suffix.lower() not in (".html", ".htm") or page.is_dir()):
        raise UserError(f"--summary {page} must be an HTML file; give a name that ends in .html.")


def write_page(
    page: Path,
    listed: PhotoList,
    predictor: "Predictor",
    part: AnswerPart,
    counts: AnswerCounts,
    *,
    table: Path,
    progress: Progress,
) -> None:
    """Write the page of listed photos; `table` is the file of all answers."""
    order = list(KINDS)
    first = heapq.nsmallest(
        MOST_SHOWN,
        zip(listed.photos, part.rows(listed.photos), strict=True),
        key=lambda one: (order.index(kind_of(one[1])), -(one[1]["urgent_risk"] or 0.0)),
    )
    shown = []
    names = {one.key: one.name for one in predictor.taxonomy.classes}
    thumbnails = work_ahead(_thumbnail, first, threads=cpu_count(), ahead=2 * cpu_count())
    for number, ((_, row), jpeg) in enumerate(zip(first, thumbnails, strict=True), 1):
        shown.append(shown_row(row, jpeg, names))
        progress("summary", number, len(first))
    advice = _advice(shown)
    kinds = {kind: text(f"step_{kind}") for kind in KINDS}
    if advice["soon"] == advice_for("soon_without_time"):
        kinds["soon"] = text("step_soon_without_time")
    style, script = (inlined("skindx.ui", name) for name in ("answers.css", "answers.js"))
    html = render(
        "answers.html.jinja",
        title=text("answers_title", n=counts.total),
        made_at=text("record_time", when=datetime.now().astimezone()),
        notice=notice(),
        counts=counts,
        kinds=kinds,
        advice=advice,
        notes=listed.notes,
        shown=shown,
        left=counts.total - len(shown),
        table=table.name,
        scope=Scope.of_classes(predictor.taxonomy.classes, predictor.bundle.warning).text,
        basis=_basis(predictor),
        source=source_of(predictor.bundle, predictor.backend),
        style=style,
        script=script,
        style_hash=csp_hash(style),
        script_hash=csp_hash(script),
    )
    with needs_room(page.parent):
        write_private(page, html)


def _advice(shown: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the usual advice of each kind, which stands once; a row has it where it differs."""
    advice = {}
    for kind in KINDS:
        given = Counter(row["advice"] for row in shown if row["kind"] == kind)
        advice[kind] = next((text for text, _ in given.most_common(1)), "")
    return advice


def _basis(predictor: "Predictor") -> list[str]:
    """Return what the bundle is worth, what sets, risks and probabilities mean, in sentences."""
    sets, rule, spec = predictor.conformal, predictor.urgent_risk, predictor.bundle.spec
    level = rule.level(predictor.miss_rate) if rule else None
    source = source_of(predictor.bundle, predictor.backend)
    useful = not_useful_yet(spec, predictor.taxonomy.classes, predictor.metrics)
    rate = round(100 * level.miss_rate, 6) if level else 0.0
    sentences = (
        joined(text("not_useful_yet"), *useful) if useful else "",
        *decision_texts.errors_of(measured_advice(predictor)),
        text("set_fitted", level=sets.level) if sets else predictor.no_sets,
        text("summary_risk", rate=rate) if level else predictor.no_urgent_risk,
        measured(predictor.metrics) or text("not_measured"),
        "" if source.calibrated else text("not_calibrated"),
        mix_text(predictor),
        source.use.licensed if source.use else "",
        source.expects,
        source.adapted,
    )
    return [sentence for sentence in sentences if sentence]


def _thumbnail(one: tuple[ListedPhoto, Row]) -> str:
    """Return a small JPEG in base64; "" for a photo that cannot be opened, or was changed since."""
    photo, row = one
    if row["refused"] == "unreadable":
        return ""  # it may have taken all the time that a photo has
    try:
        opened = open_photo(read_photo(photo.path), needed=THUMBNAIL_PX, apart=True)
    except UserError:
        return ""
    if row["sha256"] not in (None, opened.sha256):
        return ""
    return b64encode(small_jpeg(opened.pixels_HWC, THUMBNAIL_PX)).decode()


def _reaches(row: Row, question: str) -> bool:
    risk = row[f"{question}_risk"]
    return risk is not None and bool(risk >= row[f"{question}_threshold"])


def _risks(row: Row) -> list[tuple[str, str]]:
    """Return each risk with its name and threshold, the one that made the advice soon first."""
    questions = [("urgent", "summary_urgent")] if row["urgent_risk"] is not None else []
    if row["urgency"] == "soon" and _reaches(row, "soon"):
        questions.insert(0, ("soon", "summary_soon"))
    risks = []
    for key, name in questions:
        risk, least = told_apart(row[f"{key}_risk"], row[f"{key}_threshold"])
        risks.append((text("risk", risk=risk), text(name, least=least)))
    return risks


def shown_row(row: Row, jpeg: str, names: dict[str, str]) -> dict[str, Any]:
    """Return what the page has of a row, as text."""
    kind, decided = kind_of(row), row["decided_by"]
    shown: dict[str, Any] = {"file": row[FILE], "kind": kind, "jpeg": jpeg}
    shown |= {"risks": _risks(row), "urgent_risk": row["urgent_risk"] or 0.0}
    if kind == "refused":
        reason = str(row["reason"])
        shown |= {"first": "", "text": reason[:1].upper() + reason[1:]}
    elif row["abstained"]:
        is_suspected = row["urgency"] == "urgent" and _reaches(row, "urgent")
        name = names.get(decided, decided) if is_suspected else ""
        first = text("because_suspected", name=name) if name else ""
        said = text("is_unsure" if name else "does_not_know")
        shown |= {"first": first, "text": joined(said, row["abstained"])}
    else:
        likely = [names.get(key, key) for key in row["set"] or ()]
        first = f"{word(names.get(row['first'], str(row['first'])))}, {percent(row['probability'])}"
        held = text("summary_set", names=likely) if likely else ""
        if decided and decided != row["first"]:  # a harmless name must not stand beside "urgent"
            held = joined(text("summary_likeliest", name=first), held)
            first = text("summary_because", name=names.get(decided, decided))
        shown |= {"first": first, "text": held}
    shown["remarks"] = row["remarks"] or ""
    shown["advice"] = row["advice"] or ""
    shown["unsure"] = bool(row["abstained"])
    words = (shown["file"], shown["first"], shown["text"], KINDS[kind])
    shown["words"] = " ".join(map(str, words)).lower()
    return shown
