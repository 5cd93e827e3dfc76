"""What was done about a lesion, and what of it is still open, as a list of lesions says it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime

from skindx.casebook.findings import NO_FINDING, ConfirmedFinding
from skindx.casebook.kept_case import LesionHistory, Told
from skindx.diagnosis.case_actions import (
    CaseAction,
    awaited_since,
    is_acted_on,
    is_treated,
    standing,
)
from skindx.diagnosis.checklist_advice import Tier
from skindx.diagnosis.filing import BY_PATHOLOGY
from skindx.taxonomy import Taxonomy, Urgency
from skindx.taxonomy.label_matches import match
from skindx.texts.catalogue import joined, text


@dataclass(frozen=True)
class LesionState:
    """What a list says of what was done about a lesion."""

    words: str = ""
    without_action: bool = False
    """Its answer, or a recorded diagnosis, must not wait, and nothing was done since; of a
    diagnosis neither a treatment nor a referral."""
    unexamined: bool = False
    """Its answer names no urgency but an examination, of which nothing tells."""
    awaited: bool = False
    """A result of one of its cases is awaited."""
    ended: str = ""
    """What a recorded diagnosis ended or left open, in a sentence; "" for nothing."""
    diagnosed: Urgency | None = None
    """The urgency of a diagnosis that still asks for a treatment or a referral."""
    earlier: Tier | None = None
    """The urgency of an earlier answer that presses more than the latest, and is not acted on."""
    is_past: bool = False
    """Whether a diagnosis of another case, recorded later, ended the latest answer's advice."""


def lesion_state(lesion: LesionHistory, taxonomy: Taxonomy) -> LesionState:
    """Return what was done about a lesion.

    An entry counts for its own case, and for the others of its lesion where it is not older than
    they are. So an earlier referral answers for no later photo that must not wait, and an
    examination alone for none. A diagnosis that must not wait asks for a treatment or a referral,
    and one that may wait ends the advice. A diagnosis of one case counts for the others that were
    kept before it.
    """
    done = standing(action for _, told in lesion.told for action in told.actions)
    known = [day for _, told in lesion.told if (day := pathology_day(told.finding))]
    read = max(known, default=None)
    since = [day for _, told in lesion.told if (day := awaited_since(told.actions, read))]
    awaited = text("done_awaited_since", day=min(since)) if since else ""
    unseen, ended, is_past = "", "", False
    # The most pressing answer is looked at first, so that what a list shows is never less.
    for kept, own in sorted(lesion.told, key=lambda one: _rank(one[1].urgency)):
        told, day = _with_later_finding(lesion, kept, own), kept.astimezone().date()
        counts = [one for one in done if one in told.actions or one.day >= day]
        last = counts[-1].words if counts else ""
        if not last:
            before = joined(done[-1].words, text("done_none_since", day=day)) if done else ""
            last = before or no_entry(lesion)
        waits_not = must_not_wait(told, taxonomy)
        acted = is_acted_on(counts, examined=not waits_not or told.finding.is_given)
        treated = _is_treated(told, counts, taxonomy)
        if waits_not and not (acted and treated):
            untreated = "" if treated else text("done_untreated")
            open_ = untreated if acted else ""
            earlier = _earlier_words(lesion, own)
            said = joined(earlier, last, open_, awaited)
            pressing = None if treated else _urgency(_pressing(told, taxonomy), taxonomy)
            return LesionState(
                said,
                True,
                awaited=bool(since),
                ended=untreated,
                diagnosed=pressing,
                earlier=own.urgency if earlier else None,
            )
        if not acted and must_be_examined(told) and not waits_not:
            unseen = unseen or joined(last, awaited)
        elif not acted:
            ended = ended or _ended_by(told, taxonomy)
            is_past = is_past or (told is not own and own is lesion.told[-1][1])
    said = joined(done[-1].words if done else "", ended)
    return LesionState(
        unseen or awaited or said,
        unexamined=bool(unseen),
        awaited=bool(since),
        ended="" if unseen else ended,
        is_past=is_past,
    )


def _with_later_finding(lesion: LesionHistory, kept: datetime, told: Told) -> Told:
    """Return what is told of a case, with a diagnosis that counts more and that came later."""
    findings = (one.finding for _, one in lesion.told)
    later = told.finding.outweighed_by(one for one in findings if one.found and one.found >= kept)
    return replace(told, finding=later) if later.is_given else told


def pathology_day(finding: ConfirmedFinding) -> date | None:
    """Return the day on which a diagnosis by histopathology was recorded; None for none."""
    is_read = finding.is_given and finding.confirmed_by == BY_PATHOLOGY
    return finding.found.astimezone().date() if is_read and finding.found else None


def _earlier_words(lesion: LesionHistory, told: Told) -> str:
    """Return that an earlier answer presses more than the latest, which a list shows; or ""."""
    latest = lesion.told[-1][1].urgency
    presses = told.urgency in PRESSING and _rank(told.urgency) < _rank(latest)
    if not presses or told.finding.is_given:
        return ""
    return text("done_earlier", tier=text(f"tier_{told.urgency}").lower())


def _pressing(told: Told, taxonomy: Taxonomy) -> ConfirmedFinding:
    """Return the diagnosis of a case that must not wait; NO_FINDING: it has none."""
    recorded = [*([told.lapsed.finding] if told.lapsed else []), told.finding]
    return next((one for one in recorded if _urgency(one, taxonomy) in PRESSING), NO_FINDING)


def _is_treated(told: Told, done: Sequence[CaseAction], taxonomy: Taxonomy) -> bool:
    """Tell whether entries answer to a diagnosis of a case that must not wait, if there is one."""
    finding = _pressing(told, taxonomy)
    if finding is NO_FINDING:
        return True  # only the answer presses
    since = finding.found.astimezone().date() if finding.found else None
    return is_treated(done, since, confirmed=finding.is_confirmed)


def _ended_by(told: Told, taxonomy: Taxonomy) -> str:
    """Return in a sentence that a diagnosis ended what the answer advised; "" where none did."""
    answer = replace(told, finding=NO_FINDING, lapsed=None)
    if must_not_wait(answer, taxonomy):
        return text("done_by_diagnosis")
    return text("done_seen_by_diagnosis") if must_be_examined(answer) else ""


def no_entry(lesion: LesionHistory) -> str:
    """Return that nothing was recorded of a lesion, or that all of it was struck out."""
    return text(
        "done_all_struck" if any(one.had_entries for _, one in lesion.told) else "done_none"
    )


def must_be_examined(told: Told) -> bool:
    """Tell whether an answer asked to examine the lesion, and no clinician recorded a diagnosis."""
    return told.urgency in ("unknown", "beyond") and not told.finding.is_given


def must_not_wait(told: Told, taxonomy: Taxonomy) -> bool:
    """Tell whether a case is to be seen urgently or soon.

    The urgency of a confirmed diagnosis takes the place of the answer's, where it is known. One
    that nothing confirms, or that no longer stands, counts beside the answer.
    """
    if told.lapsed and _urgency(told.lapsed.finding, taxonomy) in PRESSING:
        return True
    found = _urgency(told.finding, taxonomy)
    if told.finding.is_confirmed and found:
        return found in PRESSING
    return found in PRESSING or told.urgency in PRESSING


PRESSING = ("urgent", "met", "soon")
"""Urgencies of an advice or a diagnosis that must not wait."""


def _rank(urgency: Tier | None) -> int:
    return {"urgent": 0, "met": 0, "soon": 1}.get(urgency or "", 2)


def _urgency(finding: ConfirmedFinding, taxonomy: Taxonomy) -> Urgency | None:
    """Return the urgency of a diagnosis; None where it is not known."""
    if finding.confirmed:
        known = taxonomy[finding.confirmed] if finding.confirmed in taxonomy.keys else None
    else:
        found = match(finding.outside.name) if finding.outside else None
        known = found.skin_class if found else None
    return None if known is None or known.urgency == "unknown" else known.urgency
