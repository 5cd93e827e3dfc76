"""An answer as HTML: what to do next, what it may be, why, similar cases; in that order."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from skindx.data.origin import ImageOrigin
from skindx.diagnosis.case import use_of_facts
from skindx.diagnosis.guarantees import guarantee, how_combined, measured, risk_guarantee
from skindx.diagnosis.record import (
    CANNOT_RULE_OUT,
    NEAREST_FIRST,
    NOTICE,
    SEES_SQUARE,
    CaseAnswer,
    Diagnosis,
    PhotoView,
    percent,
)
from skindx.diagnosis.scope import cannot_reassure, known_names, knows, lacks, shown_tier
from skindx.taxonomy import Taxonomy, Urgency
from skindx.taxonomy.urgent import unknown_to
from skindx.ui.html import data_url, render, sentence
from skindx.ui.page.assets import styles

TIERS: dict[Urgency, str] = {
    "urgent": "Urgent",
    "soon": "Soon",
    "routine": "Routine",
    "unknown": "Urgency unknown",
}


def top_html(*, logged_in: bool = False) -> str:
    """Return what the page is, the log-out link where people log in, the notice, and the styles.

    The styles are written into the page: Gradio rewrites those that it is given, and breaks what
    holds for phones alone.
    """
    from markupsafe import Markup

    css = Markup(styles())  # noqa: S704 (our own file)
    return render("top.html.jinja", notice=NOTICE, logged_in=logged_in, css=css)


def waiting_html(images: ImageOrigin | None = None) -> str:
    """Return what stands in the result's place before the first photo.

    `images` are those that the model learned from; the tips follow them.
    """
    return render("waiting.html.jinja", cannot_rule_out=CANNOT_RULE_OUT, images=images)


def scope_html(taxonomy: Taxonomy, learned_from: str = "") -> str:
    """Return which conditions the model knows, as it stands above the form."""
    names = known_names(taxonomy.classes)
    return render(
        "scope.html.jinja",
        names=names,
        knows=knows(names),
        lacks=lacks([condition.name for condition in unknown_to(taxonomy.classes)]),
        warning=cannot_reassure(taxonomy.classes),
        learned_from=learned_from,
    )


def problem_html(message: str, images: ImageOrigin | None = None) -> str:
    """Return a sentence about what went wrong and what to do; the tips follow `images`."""
    return render("problem.html.jinja", message=sentence(message), images=images)


def result_html(answer: CaseAnswer, metrics: dict[str, Any] | None) -> str:
    """Return the whole answer; photos are in the HTML itself, so that no file of them is kept."""
    diagnosis = answer.diagnosis
    shown = sum(candidate.probability for candidate in diagnosis.candidates)
    return render(
        "result.html.jinja",
        diagnosis=diagnosis,
        cannot_rule_out=CANNOT_RULE_OUT,
        likely=[candidate for candidate in diagnosis.candidates if candidate.in_set],
        others=[candidate for candidate in diagnosis.candidates if not candidate.in_set],
        rest=max(0.0, 1 - shown),
        tiers=TIERS,
        shown_tier=partial(shown_tier, diagnosis),
        guarantee=guarantee(diagnosis),
        knows=knows(diagnosis.known),
        lacks=lacks(diagnosis.unknown_urgent),
        ood=ood_sentence(diagnosis),
        how_combined=how_combined(diagnosis),
        use_of_facts=use_of_facts(diagnosis.patient),
        measured=measured(metrics),
        risk_guarantee=risk_guarantee(diagnosis),
        percent=percent,
        names={candidate.key: candidate.name for candidate in diagnosis.candidates},
        views=_views(diagnosis, answer.views),
        sees_square=SEES_SQUARE,
        has_heat=any(view.heat for view in answer.views),
        similar=_similar(answer),
        nearest_first=NEAREST_FIRST,
    )


def ood_sentence(diagnosis: Diagnosis) -> str:
    """Return what the out-of-distribution check found, in plain words."""
    if diagnosis.familiarity is None:
        return "This bundle has no check for photos that are unlike the images it was trained on."
    return (
        f"Out-of-distribution check: {percent(diagnosis.familiarity)} of the calibration images "
        "are as unlike the training images as this photo, or more."
    )


def _views(diagnosis: Diagnosis, views: Sequence[PhotoView]) -> list[dict[str, Any]]:
    return [
        {
            "photo": photo,
            "jpeg": data_url(view.jpeg, "image/jpeg"),
            "heat": data_url(view.heat, "image/png") if view.heat else "",
        }
        for photo, view in zip(diagnosis.photos, views, strict=True)
    ]


def _similar(answer: CaseAnswer) -> list[dict[str, Any]]:
    thumbnails = answer.thumbnails or (b"",) * len(answer.diagnosis.similar)
    return [
        {"rank": rank, "case": case, "jpeg": data_url(jpeg, "image/jpeg") if jpeg else ""}
        for rank, (case, jpeg) in enumerate(
            zip(answer.diagnosis.similar, thumbnails, strict=True), 1
        )
    ]
