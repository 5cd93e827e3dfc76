"""An answer as HTML: what to do next, what it may be, why, similar cases; in that order.

Below it are a report to take along, a place in the case book, and the offer of a scan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from skindx.casebook.case_names import NAMED_FACTS, NAMED_PLACES
from skindx.casebook.kept_case import CASE_CONSENTS, SCAN_CONSENTS, one_lesion_question
from skindx.core.errors import UserError
from skindx.core.machine import missing_modules, require_extra
from skindx.data.origin import ImageOrigin
from skindx.diagnosis import answer_texts
from skindx.diagnosis.case import Case, values_of
from skindx.diagnosis.intake import INTAKE
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.record import (
    CaseAnswer,
    Diagnosis,
    Photo,
    PhotoView,
    in_its_language,
    shown_heat,
    unreviewed,
)
from skindx.diagnosis.report.unjudged_report import unjudged
from skindx.diagnosis.scope import cannot_reassure, known_names, knows, lacks
from skindx.models.bundle.use_limits import Example
from skindx.taxonomy import Taxonomy, unknown_to
from skindx.texts.catalogue import joined, percent, script_sentences, text, word
from skindx.ui.http.answer_forms import Reports
from skindx.ui.page_basics import data_url, render, sentence, styles
from skindx.ui.scans.scan_job import ScanServing

if TYPE_CHECKING:
    from skindx.ui.scans.scan_jobs import ScanJobs


def top_html(
    limits: str = "", images: ImageOrigin | None = None, *, logged_in: bool = False
) -> str:
    """Return what the page is, the log-out link where people log in, the notice, and the styles.

    `limits` is a sentence on what the model does not know, which an answer says by itself, and
    `images` are those that it learned from.
    The styles are written into the page: Gradio rewrites those that it is given, and breaks what
    holds for phones alone.
    """
    from markupsafe import Markup

    css = Markup(styles())  # noqa: S704 (our own file)
    said = {"said": script_sentences(), "unreviewed": unreviewed()}
    about = {"limits": limits, "images": images}
    return render("top.html.jinja", **said, **about, logged_in=logged_in, css=css)


def waiting_html(images: ImageOrigin | None = None, *, similar: bool = True) -> str:
    """Return what stands in the result's place before the first photo.

    `images` are those that the model learned from, which the tips follow; `similar`: it has some.
    """
    facts = {"images": images, "similar": similar}
    return render("waiting.html.jinja", **facts)


def scope_html(taxonomy: Taxonomy, learned_from: str = "", errors: str = "") -> str:
    """Return which conditions the model knows and both `errors`, as it stands beside the form."""
    names = [word(name) for name in known_names(taxonomy.classes)]
    return render(
        "scope.html.jinja",
        names=names,
        knows=knows(names),
        lacks=lacks([condition.name for condition in unknown_to(taxonomy.classes)]),
        warnings=[said for said in (learned_from, cannot_reassure(taxonomy.classes)) if said],
        errors=errors,
    )


def problem_html(message: str, images: ImageOrigin | None = None) -> str:
    """Return a sentence about what went wrong and what to do; the tips follow `images`."""
    return render("problem.html.jinja", message=sentence(message), images=images)


@dataclass(frozen=True)
class TriedExample:
    """What an answer to an example has beside it."""

    truth: str
    """The name of the true diagnosis."""
    verdict: str
    """Whether the model is right, in sentences."""
    example: Example


def example_of(example: Example, diagnosis: Diagnosis, taxonomy: Taxonomy) -> TriedExample:
    """Return what the page says of an example after its answer."""
    first, truth = diagnosis.candidates[0], example.class_of(taxonomy.classes)
    if truth is None:
        verdict = text("example_unknown")
    elif diagnosis.abstained:
        verdict = text("example_abstained")
    elif first.key == truth.key:
        verdict = text("example_right")
    else:
        inside = any(one.in_set and one.key == truth.key for one in diagnosis.candidates)
        holds = text("example_in_set") if inside else ""
        verdict = joined(text("example_wrong", name=first.name), holds)
    if truth and truth.urgency == "urgent" and diagnosis.next_step.urgency != "urgent":
        verdict = joined(verdict, text("example_missed", name=truth.name))
    if truth and truth.urgency != "urgent" and diagnosis.next_step.urgency == "urgent":
        verdict = joined(verdict, text("example_raised"))
    return TriedExample(word(truth.name) if truth else example.truth, verdict, example)


@in_its_language(named=True)
def result_html(
    answer: CaseAnswer,
    metrics: dict[str, Any] | None,
    tried: TriedExample | None = None,
    *,
    is_one: bool = False,
) -> str:
    """Return the whole answer; photos are in the HTML itself, so that no file of them is kept.

    `tried`: it is the answer to an example, which the page marks, with the true diagnosis.
    `is_one`: the person said that all photos show one lesion, so that this is not asked.
    """
    diagnosis = answer.diagnosis
    said = answer_texts.written(diagnosis, metrics)
    inside = [one for one in diagnosis.candidates if one.in_set and not diagnosis.abstained]
    return render(
        "result.html.jinja",
        diagnosis=diagnosis,
        said=said,
        inside=inside,
        outside=[one for one in diagnosis.listed if one not in inside],
        more=len(diagnosis.known) - len(diagnosis.candidates),
        rest=max(0.0, 1 - sum(candidate.probability for candidate in diagnosis.candidates)),
        when=datetime.now().astimezone(),
        percent=percent,
        names={candidate.key: candidate.name for candidate in diagnosis.candidates},
        views=_views(diagnosis, said, answer.views),
        one_lesion=one_lesion_question(diagnosis)
        if _of_several_lesions(diagnosis) and not is_one
        else "",
        has_heat=any(shown_heat(answer)),
        similar=_similar(answer),
        tried=tried,
    )


def _of_several_lesions(diagnosis: Diagnosis) -> bool:
    """Tell whether anything speaks for more than one lesion; the form asks about any two photos."""
    outlined = any(len(photo.boxes or ()) > 1 for photo in diagnosis.photos)
    return outlined or diagnosis.photos_differ


def _views(
    diagnosis: Diagnosis, said: answer_texts.AnswerTexts, views: Sequence[PhotoView]
) -> list[dict[str, Any]]:
    return [
        {
            # What an example is stands above the answer, once.
            "photo": photo.model_copy(
                update={"remarks": [one for one in photo.remarks if one != text("remark_example")]}
            ),
            "risk": risk,
            "jpeg": data_url(view.jpeg, "image/jpeg"),
            "heat": data_url(view.heat, "image/png") if view.heat else "",
        }
        for photo, risk, view in zip(diagnosis.photos, said.photo_risks, views, strict=True)
    ]


def _similar(answer: CaseAnswer) -> list[dict[str, Any]]:
    thumbnails = answer.thumbnails or (b"",) * len(answer.diagnosis.similar)
    return [
        {"rank": rank, "case": case, "jpeg": data_url(jpeg, "image/jpeg") if jpeg else ""}
        for rank, (case, jpeg) in enumerate(
            zip(answer.diagnosis.similar, thumbnails, strict=True), 1
        )
    ]


_KEEP_FIELDS = (
    "patient", "lesion", "one_lesion", "same_lesion", "same_person", "again", "consent", "compare",
    "train", "laterality", "site",
)  # fmt: skip


@in_its_language(named=False)
def followup_html(
    answer: CaseAnswer,
    reports: Reports,
    user: str,
    *,
    keeps: bool,
    kept: str = "",
    place: str = "",
    problem: str = "",
    doubt: bool = False,
    differs: bool = False,
    already: bool = False,
    other_person: bool = False,
    known: Mapping[str, Sequence[str]] | None = None,
    sent: Mapping[str, str] | None = None,
) -> str:
    """Return the follow-up; what a report is made of is in the HTML, sealed for `user`.

    `keeps`: there is a case book; `kept` says that this answer is in it, `place` is its address
    there, `problem` why it is not, `doubt` that its names may say who the patient is, `differs`
    that facts differ from earlier ones of the lesion, `other_person` from those of the person,
    `already` that the lesion has the photo. `known` are the names of the user's
    patients and lesions, `sent` is what the form held.
    """
    given, lesion = answer.diagnosis.patient.given, (sent or {}).get("lesion", "")
    sealed, no_pdf, now = "", "", datetime.fromisoformat(answer.given).astimezone()
    try:
        require_extra("serve", "fpdf", purpose="a PDF report")
        sealed = reports.sealed(answer, now, user)
    except UserError as error:
        no_pdf = sentence(str(error))
    return render(
        "followup.html.jinja",
        sealed=sealed,
        no_pdf=no_pdf,
        is_open_to_all=not user,
        keeps=keeps,
        kept=kept,
        place=place,
        problem=sentence(problem),
        doubt=doubt,
        differs=differs or bool(sent and sent.get("same_lesion")),
        other_person=other_person or bool(sent and sent.get("same_person")),
        already=already or bool(sent and sent.get("again")),
        known={name: list(lesions) for name, lesions in (known or {}).items()},
        sent={name: (sent or {}).get(name, "") for name in _KEEP_FIELDS},
        places=NAMED_PLACES,
        asked={name: INTAKE[name] for name in NAMED_FACTS if name not in given},
        named={name: of(lesion) for name, of in NAMED_FACTS.items()},
        values_of=values_of,
        one_lesion=one_lesion_question(answer.diagnosis),
        consents=CASE_CONSENTS,
    )


def unjudged_html(case: Case, error: Refused, reports: Reports, user: str, *, day: str = "") -> str:
    """Return the offer of a record of a refused case, sealed for `user`; "" without fpdf2.

    `day` is when a person says that the photos were taken.
    """
    if missing_modules("fpdf"):
        return ""
    now = datetime.now().astimezone()
    return render(
        "unjudged.html.jinja", sealed=reports.sealed(unjudged(case, error, day), now, user)
    )


@dataclass(frozen=True)
class PageScans:
    """What the page needs of the server's scans; without `jobs` it takes and offers none."""

    settings: ScanServing
    jobs: "ScanJobs | None" = None
    looks: bool = True
    """Whether the networks of a diagnosis look for lesions: the bundle has a detector."""


def offer_html(
    photos: Mapping[int, Photo],
    scans: PageScans,
    *,
    keeps: bool,
    answered: bool = True,
    known: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Return the offer for a case's photos; "" where none is a wide one.

    Where nothing looks for lesions, each photo that the networks refused may be one.

    `keeps`: there is a case book, in which the user has patients of the names `known`; `answered`:
    the case has an answer above the offer.
    """
    counts = scans.settings.wide.wide(photos)
    if not answered and not scans.looks:
        counts = dict.fromkeys(photos, 0)
    wide = list(counts)
    if not wide or scans.jobs is None:
        return ""
    return render(
        "scan_offer.html.jinja",
        wide=wide,
        lesions=sum(counts.values()),
        alone=len(wide) == 1 and wide[0] == 0 and len(photos) == 1,
        answered=answered,
        minutes=round(scans.settings.keep_s / 60),
        keeps=keeps,
        known={name: [] for name in known or ()},
        consents=SCAN_CONSENTS,
    )
