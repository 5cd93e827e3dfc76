"""An answer as HTML: what to do next, what it may be, why, similar cases; in that order."""

from collections.abc import Sequence
from typing import Any

from skindx.diagnosis.answer import Answer, View
from skindx.diagnosis.measured import measured
from skindx.diagnosis.record import NOTICE, Diagnosis, Promise, Share, percent
from skindx.diagnosis.words import URGENT_APART
from skindx.taxonomy import Urgency
from skindx.ui.html import data_url, render, sentence
from skindx.ui.page.look import styles

TIERS: dict[Urgency, str] = {
    "urgent": "Urgent",
    "soon": "Soon",
    "routine": "Routine",
    "unknown": "Urgency unknown",
}


def top_html(*, logged_in: bool = False) -> str:
    """Return what the page is, the way out where people log in, the notice, and the styles.

    The styles are written into the page: Gradio rewrites those that it is given, and breaks what
    holds for phones alone.
    """
    from markupsafe import Markup

    css = Markup(styles())  # noqa: S704 (our own file)
    return render("top.html.jinja", notice=NOTICE, logged_in=logged_in, css=css)


def waiting_html() -> str:
    """Return what stands in the result's place before the first photo."""
    return render("waiting.html.jinja")


def problem_html(message: str) -> str:
    """Return a sentence about what went wrong and what to do."""
    return render("problem.html.jinja", message=sentence(message))


def result_html(answer: Answer, metrics: dict[str, Any] | None) -> str:
    """Return the whole answer; photos are in the HTML itself, so that no file of them is kept."""
    diagnosis = answer.diagnosis
    shown = sum(each.probability for each in diagnosis.candidates)
    return render(
        "result.html.jinja",
        diagnosis=diagnosis,
        likely=[each for each in diagnosis.candidates if each.in_set],
        others=[each for each in diagnosis.candidates if not each.in_set],
        rest=max(0.0, 1 - shown),
        tiers=TIERS,
        promised=promised(diagnosis.promise, sum(each.in_set for each in diagnosis.candidates)),
        missed=missed(diagnosis.promise),
        familiar=familiar(diagnosis),
        measured=measured(metrics),
        percent=percent,
        names={each.key: each.name for each in diagnosis.candidates},
        pictures=_pictures(diagnosis, answer.views),
        has_heat=any(view.heat for view in answer.views),
        similar=_similar(answer),
    )


def promised(promise: Promise | None, count: int) -> str:
    """Return what the set of classes promises, in plain words; empty where there are no sets."""
    if promise is None:
        return ""
    whose = "" if promise.group == "all" else f" of {promise.group.replace('_', ' ')}"
    these = "This condition is" if count == 1 else f"These {count} conditions are"
    urgent = apart = ""
    if promise.urgent_level is not None and promise.urgent_apart:
        urgent = f", of urgent conditions about {100 * promise.urgent_level:.0f}"
        apart = f" {URGENT_APART}"
    return (
        f"{these} the set: of 100 photos like the calibration photos, about "
        f"{100 * promise.level:.0f} have their true condition in such a set{urgent} "
        f"(fitted on {promise.pictures:,} photos{whose}).{apart}"
    )


def missed(promise: Promise | None) -> str:
    """Return how often a set misses what is urgent, with its interval."""
    if promise is None:
        return ""
    if promise.urgent_missed is None:
        return "How often such a set misses an urgent condition could not be measured."
    share = _share(promise.urgent_missed)
    return f"Of urgent calibration photos, {share} had no urgent condition in their set."


def familiar(diagnosis: Diagnosis) -> str:
    """Return what the out-of-distribution check found, in plain words."""
    if diagnosis.familiarity is None:
        return "This bundle cannot tell whether a photo is unlike the images it was trained on."
    return (
        f"Out-of-distribution check: {percent(diagnosis.familiarity)} of the calibration photos "
        "are as unlike the training images as this photo, or more."
    )


def _share(share: Share) -> str:
    return (
        f"{100 * share.value:.1f} % (95 % interval {100 * share.low:.1f} to "
        f"{100 * share.high:.1f} %, {share.pictures:,} photos)"
    )


def _pictures(diagnosis: Diagnosis, views: Sequence[View]) -> list[dict[str, Any]]:
    return [
        {
            "photo": photo,
            "jpeg": data_url(view.jpeg, "image/jpeg"),
            "heat": data_url(view.heat, "image/png") if view.heat else "",
        }
        for photo, view in zip(diagnosis.photos, views, strict=True)
    ]


def _similar(answer: Answer) -> list[dict[str, Any]]:
    thumbnails = answer.thumbnails or (b"",) * len(answer.diagnosis.similar)
    return [
        {"case": case, "jpeg": data_url(jpeg, "image/jpeg") if jpeg else ""}
        for case, jpeg in zip(answer.diagnosis.similar, thumbnails, strict=True)
    ]
