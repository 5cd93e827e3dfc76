"""The diagnosis page as Gradio blocks: which event calls what."""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from skindx.core.errors import UserError
from skindx.core.machine import go_offline
from skindx.diagnosis.photo_checks import MIN_SIDE, Refusal, Refused
from skindx.diagnosis.scope import knows_only, shared_reason
from skindx.imaging.cut_lesions import Cut
from skindx.imaging.photo_date import checked_day
from skindx.models.bundle.bundle import Bundle
from skindx.models.bundle.bundle_index import least_side, shown_frame, used_fields
from skindx.models.bundle.use_limits import NO_EXAMPLES, Examples
from skindx.texts.catalogue import joined, speaking, spoken, text
from skindx.ui.diagnosis_pool import Diagnoser
from skindx.ui.http.answer_forms import Reports
from skindx.ui.http.asgi import login_name
from skindx.ui.page.answer_html import (
    PageScans,
    example_of,
    followup_html,
    offer_html,
    problem_html,
    result_html,
    scope_html,
    top_html,
    unjudged_html,
    waiting_html,
)
from skindx.ui.page.casebook_keeping import case_keeper, known_names, scan_keeper
from skindx.ui.page.casebook_page import add_casebook_tab
from skindx.ui.page.form_html import (
    by_skin_type,
    case_of,
    intake_html,
    many_html,
    measured_errors,
    unanswered_shown,
)
from skindx.ui.page_basics import log_fault, script, sentence
from skindx.ui.scans.scan_job import seen_of_refused
from skindx.ui.uploads import (
    cut_as_seen,
    shown_by_server,
    shown_of_refused,
    taken_on,
    upload_folder,
)

if TYPE_CHECKING:
    import gradio as gr

    from skindx.casebook.casebook import Casebook


log = logging.getLogger(__name__)

ANSWER_LIFE_S = 1800
"""Seconds after an answer came in which it can be kept in a case book."""

_TO_ANSWER = """
watch("value", () => {
  element.querySelector(".sx-result, .sx-problem")?.focus({ preventScroll: true });
});
"""
"""Whoever does not see the page is led to the answer as soon as it is there."""
_DONE = "() => { document.dispatchEvent(new Event('skindx-done')); }"


def build_page(
    diagnoser: Diagnoser,
    bundle: Bundle,
    reports: Reports,
    casebook: "Casebook | None" = None,
    *,
    logged_in: bool = False,
    scans: PageScans | None = None,
    examples: Examples = NO_EXAMPLES,
    miss_rate: float | None = None,
) -> "gr.Blocks":
    """Return the page over a bundle in the spoken language, which its answers have too.

    The case book's tab is there only where one is given, and is English.
    `reports` seals what PDF reports are made of, `logged_in` shows a log-out link, `scans` offers
    scans for wide photos, `examples` are photos to try the bundle with, `miss_rate` is that of the
    threshold in use.
    """
    go_offline()
    import gradio as gr

    errors = measured_errors(bundle, miss_rate)
    more: dict[str, Any] = {"scans": scans, "examples": examples, "errors": errors}
    with gr.Blocks(title="skindx", analytics_enabled=False) as page:
        use = bundle.spec.use
        limits = knows_only(bundle.taxonomy.classes, use.lacking if use else ())
        if use and not use.commercial:
            limits = joined(limits, use.purpose_text)
        top = top_html(limits, bundle.images, logged_in=logged_in)
        gr.HTML(
            top,
            elem_id="sx-top",
            apply_default_css=False,
            js_on_load=script("session", "names", "lacks", "places"),
        )
        if casebook is None:
            _add_diagnosis(diagnoser, bundle, reports, None, **more)
        else:
            with gr.Tabs(elem_id="sx-tabs"):
                with gr.Tab(text("tab_diagnosis"), id="diagnosis"):
                    _add_diagnosis(diagnoser, bundle, reports, casebook, **more)
                with gr.Tab(text("tab_book"), id="book"):
                    add_casebook_tab(casebook, bundle.taxonomy)

        def forget(request: gr.Request) -> None:
            # Gradio remembers what a tab shows, photos included, long after the tab is closed.
            page.state_holder.session_data.pop(request.session_hash, None)

        page.unload(forget)
    return page


def _add_diagnosis(
    diagnoser: Diagnoser,
    bundle: Bundle,
    reports: Reports,
    casebook: "Casebook | None",
    *,
    scans: PageScans | None,
    examples: Examples,
    errors: str,
) -> None:
    import gradio as gr

    least, frame = max(MIN_SIDE, least_side(bundle.spec)), shown_frame(bundle.spec)
    waiting = waiting_html(bundle.images, similar=bundle.spec.gallery is not None)
    with gr.Row(elem_id="sx-columns"):
        with gr.Column(scale=6, min_width=300, elem_id="sx-left"):
            form = gr.HTML(
                {"kind": "waiting"},
                html_template=intake_html(
                    least,
                    bundle.images,
                    crop=frame.crop if frame.frame == "square" else None,
                    fields=used_fields(bundle.spec),
                    by_skin_type=by_skin_type(bundle),
                    examples=examples,
                    use=bundle.spec.use,
                ),
                js_on_load=script("crop", "intake"),
                apply_default_css=False,
            )
        with gr.Column(scale=5, min_width=300, elem_id="sx-right"):
            offer = gr.HTML(
                "",
                apply_default_css=False,
                js_on_load=script("scan", "report"),
                elem_id="sx-scan-offer",
            )
            kept_scan = gr.HTML(
                "", apply_default_css=False, js_on_load=None, elem_id="sx-kept-scan"
            )
            result = gr.HTML(
                waiting,
                apply_default_css=False,
                js_on_load=_TO_ANSWER,
                elem_id="sx-answer",
            )
            follow = gr.HTML(
                "",
                apply_default_css=False,
                js_on_load=script("act", "report"),
                elem_id="sx-follow",
            )
            gr.HTML(
                scope_html(bundle.taxonomy, bundle.warning, errors),
                apply_default_css=False,
                js_on_load=None,
                elem_id="sx-known",
            )
    gr.HTML(
        many_html(least, bundle.spec.use, errors),
        apply_default_css=False,
        js_on_load=script("many"),
        elem_id="sx-many-photos",
    )
    kept_answer = gr.State(None, time_to_live=ANSWER_LIFE_S) if casebook else None
    shows = [form, result, follow, offer, kept_scan, *([kept_answer] if kept_answer else [])]

    parts = _Parts(form, result, follow, offer, kept_scan, kept_answer)
    newest = _NewestQuestions()
    answers = _answering(
        parts, diagnoser, bundle, reports, casebook, scans=scans, examples=examples
    )

    async def ask(event: gr.EventData, request: gr.Request) -> AsyncIterator[dict[Any, Any]]:
        number, tab = _question(event._data), str(request.session_hash)
        newest.note(tab, number)
        async for message in answers(event._data, login_name(request)):
            # Nobody waits for an answer to a case that was cleared. The form hears nothing of it:
            # of two messages that come at once a browser shows a part the last one alone.
            # An iterator that yields nothing would empty every part.
            yield {form: gr.skip()} if newest.is_past(tab, number) else message

    def again(event: gr.EventData, request: gr.Request) -> dict[Any, Any]:
        newest.note(str(request.session_hash), _question(event._data))
        cleared = {form: _form_message("again"), result: waiting}
        return parts.blank | cleared | ({kept_answer: None} if kept_answer else {})

    quiet = {"api_visibility": "private", "show_progress": "hidden"}
    # No limit here: the diagnoser has a queue and reports when it is full. A question may come
    # before the answer to one that was given up.
    each = quiet | {"trigger_mode": "multiple"}
    form.ask(ask, None, shows, concurrency_limit=None, **each).then(None, js=_DONE)
    form.again(again, None, shows, **each)
    if casebook:
        follow.act(case_keeper(casebook, reports), kept_answer, follow, **quiet)
        offer.act(scan_keeper(casebook, scans.jobs if scans else None), None, kept_scan, **quiet)


@dataclass(frozen=True)
class _Parts:
    """What an answer changes on the page."""

    form: Any
    result: Any
    follow: Any
    offer: Any
    kept_scan: Any
    kept_answer: Any
    """None without a case book."""

    @property
    def blank(self) -> dict[Any, Any]:
        return {self.follow: "", self.offer: "", self.kept_scan: ""}


def _answering(
    parts: _Parts,
    diagnoser: Diagnoser,
    bundle: Bundle,
    reports: Reports,
    casebook: "Casebook | None",
    *,
    scans: PageScans | None,
    examples: Examples,
) -> Callable[[Any, str], AsyncIterator[dict[Any, Any]]]:
    """Return what answers a form's question of a user by messages to the parts of the page.

    They are in the language that is spoken now: Gradio asks later, in a task of its own.
    Nothing of the answer to an example can be kept: it has no report, scan or place in a case book.
    """
    metrics, keeps, language = bundle.metrics(), parts.kept_answer is not None, spoken()
    recording = asyncio.Semaphore(1)  # each opens photos of which nothing is known

    async def answered(sent: Any, user: str) -> tuple[dict[Any, Any], Later | None]:
        told = partial(_form_message, question=_question(sent))
        known = await asyncio.to_thread(known_names, casebook, user) if casebook else {}
        keeping: dict[str, Any] = {"keeps": keeps, "known": known}
        try:
            case = case_of(sent, upload_folder())
            day = _taken(sent)
            answer = taken_on(await diagnoser.diagnose(case), day)
            answer = cut_as_seen(answer, _cuts(sent))
            example, is_one = examples.find(case.photos), _is_one_lesion(sent)
            if answer.diagnosis.photos_differ and not example and not is_one:
                return {parts.form: told("differ")}, None
            tried = example_of(example, answer.diagnosis, bundle.taxonomy) if example else None
            answer_shown = await asyncio.to_thread(
                result_html, answer, metrics, tried, is_one=is_one
            )
            seen = dict(enumerate(answer.diagnosis.photos))
            offered = offer_html(seen, scans, **keeping) if scans and not tried else ""
            shown = await asyncio.to_thread(shown_by_server, case, answer)
            after = ""
            if not tried:
                after = await asyncio.to_thread(followup_html, answer, reports, user, **keeping)
            on_page = {parts.result: answer_shown, parts.follow: after, parts.offer: offered}
            kept = {parts.kept_answer: None if tried else answer} if keeps else {}
            told_form = {parts.form: told("answered", shown=shown)}
            return parts.blank | on_page | kept | told_form, None
        except Refused as error:
            wide = seen_of_refused(error)
            if scans and not scans.looks:
                wide = {n: one for n, one in wide.items() if n not in close_ups(error, bundle)}
            own = not examples.find(case.photos)
            offered = offer_html(wide, scans, **keeping, answered=False) if scans and own else ""
            step = unanswered_shown(case.patient, error.unless if own else "") | {
                "shared": _shared(error, len(case.photos))
            }
            refused = told("refused", error.refusals, shown_of_refused(error), step=step)
            record = partial(unjudged_html, case, error, reports, user, day=day)
            later = partial(_recorded, recording, parts.offer, offered, record)
            cleared: dict[Any, Any] = {parts.offer: "", parts.kept_scan: ""}
            return cleared | {parts.form: refused}, later if own else None
        except Exception as error:
            message = _message_of(error)
            # The answer before which the form stands stays: the form says what went wrong.
            if isinstance(sent, Mapping) and sent.get("answered"):
                return {parts.form: told("refused", [Refusal(-1, "unreadable", message)])}, None
            problem = {parts.result: problem_html(message, bundle.images)}
            return parts.blank | problem | {parts.form: told("failed")}, None

    async def answers(sent: Any, user: str) -> AsyncIterator[dict[Any, Any]]:
        with speaking(language):
            message, later = await answered(sent, user)
        yield message
        if later:
            with speaking(language):
                message = await later()
            yield message
        # Gradio remembers the last message of each part that a tab shows, photos included; a part
        # that a message leaves out stays in the browser alone.
        yield {parts.kept_scan: ""}

    return answers


def _shared(error: Refused, photos: int) -> str:
    """Return the reason of all photos, which stands in the next step, before what it offers."""
    alone = error.refusals[0].message if photos == 1 and error.unless else ""
    return alone or shared_reason([one.message for one in error.refusals], photos)


def close_ups(error: Refused, bundle: Bundle) -> set[int]:
    """Return the refused photos that look as if taken through a dermatoscope: they show no body."""
    dermoscopic = bundle.images is not None and bundle.images.modality == "dermoscopic"
    return {one.photo for one in error.refusals if (one.gate == "modality") != dermoscopic}


Later = Callable[[], Awaitable[dict[Any, Any]]]
"""Makes what follows the first message."""


async def _recorded(
    recording: asyncio.Semaphore, part: Any, offered: str, record: Callable[[], str]
) -> dict[Any, Any]:
    """Return what a part offers after a refusal, which did not wait for its record."""
    try:
        async with recording:
            return {part: offered + await asyncio.to_thread(record)}
    except Exception as error:
        log_fault(log, "the record of a refusal could not be made", error)
        return {part: offered}


class _NewestQuestions:
    """The highest number that each open tab gave a question, or the clearing of a case.

    What is answered to an older one comes too late, and must not stand in the place of another.
    """

    def __init__(self) -> None:
        self._of: OrderedDict[str, int] = OrderedDict()

    def note(self, tab: str, number: int | None) -> None:
        """A tab has sent a number; of tabs that sent none for long nothing is known."""
        self._of[tab] = max(number or 0, self._of.pop(tab, 0))
        if len(self._of) > _MOST_TABS:
            self._of.popitem(last=False)

    def is_past(self, tab: str, number: int | None) -> bool:
        """Tell whether a tab has sent a higher number since."""
        return self._of.get(tab, 0) > (number or 0) > 0


_MOST_TABS = 10_000


def _question(sent: object) -> int | None:
    """Return the number that the form gave its question, which the answer bears."""
    number = sent.get("question") if isinstance(sent, Mapping) else None
    return number if isinstance(number, int) else None


def _is_one_lesion(sent: object) -> bool:
    """Tell whether a person says that photos that seem to differ show one lesion."""
    return isinstance(sent, Mapping) and sent.get("one_lesion") is True


def _taken(sent: object) -> str:
    """Return the day on which a person says that the photos were taken. Raises UserError."""
    return checked_day(str(sent.get("taken") or "")) if isinstance(sent, Mapping) else ""


def _cuts(sent: object) -> list[Cut]:
    """Return what the form found to cut the lesion of each photo, as far as it says so."""
    cuts = sent.get("cuts") if isinstance(sent, Mapping) else None
    known: tuple[Cut, ...] = get_args(Cut)
    return [one if one in known else "" for one in cuts] if isinstance(cuts, list) else []


def _message_of(error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)
    log_fault(log, "a case could not be diagnosed", error)
    return text("problem_failed")


def _form_message(
    kind: str,
    refusals: Sequence[Refusal] = (),
    shown: Mapping[int, str] | None = None,
    *,
    question: int | None = None,
    step: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a message to the form; a random number makes every message a change of its value.

    `shown` are previews of photos that a browser may be unable to show, by their place in the case,
    `step` is what to do after a refusal.
    """
    return {
        "kind": kind,
        "question": question,
        "step": step,
        "shown": {str(place): url for place, url in (shown or {}).items()},  # as JSON has keys
        "refusals": [
            {"photo": refusal.photo, "message": sentence(refusal.message)} for refusal in refusals
        ],
        "number": secrets.token_hex(4),
    }
