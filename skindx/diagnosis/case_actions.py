"""What was done about a case after its answer: entries that are never overwritten.

A mistaken entry is struck out and stays, with who did so and when. An answer that advised a visit
stays without action until an entry says what happened, and a result is awaited until an entry says
that it is known: nothing else ends either, so that no list calls a case finished that is not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any

from skindx.core.errors import UserError
from skindx.texts.catalogue import joined, text

LONGEST_DETAIL = 80
"""Characters of what an entry says in free text, and of a clinician's name."""


def by_login(login: str) -> str:
    """Return a login as a report names it; "" for none."""
    return text("record_login", who=login) if login else ""


def _who(name: str, login: str) -> str:
    """Return who did something: a clinician's name with the login, or the one that is known."""
    both = text("done_who", name=name, login=by_login(login)) if login else name
    return both if name else by_login(login)


class ActionKind(StrEnum):
    """What can happen about a case, in the order of a form."""

    REFERRED = "referred"
    EXAMINED = "examined"
    BIOPSIED = "biopsied"
    EXCISED = "excised"
    AWAITED = "awaited"
    KNOWN = "known"
    CLOSED = "closed"
    ABSENT = "absent"

    @property
    def label(self) -> str:
        """Its name in a form."""
        return text(_TEXTS[self][0])


_TEXTS = {
    ActionKind.REFERRED: ("done_kind_referred", "done_referred"),
    ActionKind.EXAMINED: ("done_kind_examined", "done_examined"),
    ActionKind.BIOPSIED: ("done_kind_biopsied", "done_biopsied"),
    ActionKind.EXCISED: ("done_kind_excised", "done_excised"),
    ActionKind.AWAITED: ("done_kind_awaited", "done_awaited"),
    ActionKind.KNOWN: ("done_kind_known", "done_known"),
    ActionKind.CLOSED: ("done_kind_closed", "done_closed"),
    ActionKind.ABSENT: ("done_kind_absent", "done_absent"),
}
"""The text in a form and that of an entry, by kind."""


@dataclass(frozen=True, slots=True)
class CaseAction:
    """One thing that was done about a case, or that happened."""

    kind: ActionKind
    day: date
    """The day on which it happened."""
    when: datetime
    """When it was written down."""
    detail: str = ""
    """Whom a patient was referred to, why a case was closed, or a remark."""
    by: str = ""
    """Login that wrote it down; "" where nobody logs in."""
    clinician: str = ""
    """Name of the clinician; "" where nobody gave it."""
    struck: datetime | None = None
    """When it was struck out as a mistake; None: it stands."""
    struck_by: str = ""
    """Login that did so."""
    struck_name: str = ""
    """Name of who did so; "" where nobody gave it, as in an older version."""
    struck_why: str = ""
    """Why, as that person wrote; "" in an older version."""

    @property
    def words(self) -> str:
        """What happened and when, in one or two sentences."""
        if self.kind is ActionKind.REFERRED:
            return text("done_referred", to=self.detail, day=self.day)
        said = text(_TEXTS[self.kind][1], day=self.day)
        if self.kind is ActionKind.CLOSED:
            return joined(said, text("book_reason_was", reason=self.detail))
        return joined(said, text("done_remark", detail=self.detail) if self.detail else "")

    @property
    def recorded(self) -> str:
        """When it was written down and by whom, in a sentence."""
        who, when = _who(self.clinician, self.by), self.when.astimezone()
        return text("done_recorded_by", when=when, who=who) if who else text("done_on", when=when)

    @property
    def in_full(self) -> str:
        """The entry with its trace, which comes first where it was struck out."""
        return joined(self.ended, self.words, self.recorded)

    @property
    def ended(self) -> str:
        """When it was struck out and by whom, in a sentence; "" where it stands."""
        if self.struck is None:
            return ""
        who, when = _who(self.struck_name, self.struck_by), self.struck.astimezone()
        said = text("done_struck_by", when=when, who=who) if who else text("done_struck", when=when)
        return joined(
            said, text("book_reason_was", reason=self.struck_why) if self.struck_why else ""
        )


def entries_by_day(actions: Sequence[CaseAction]) -> list[tuple[int, CaseAction]]:
    """Return all entries with their places, those of the earliest day first."""
    return sorted(enumerate(actions), key=lambda one: (one[1].day, one[1].when))


def action_of(
    kind: str, day: str, detail: str = "", clinician: str = "", by: str = ""
) -> CaseAction:
    """Return an entry that is written down now. Raises UserError for what cannot be kept.

    `day` is a date in ISO 8601, of tomorrow at most: the server's clock may be behind the clinic's.
    """
    detail, clinician = " ".join(detail.split()), " ".join(clinician.split())
    if kind not in set(ActionKind):
        raise UserError(text("done_choose"))
    now = datetime.now(UTC)
    try:
        on = date.fromisoformat(day)
    except ValueError:
        raise UserError(text("done_day")) from None
    if on > now.astimezone().date() + timedelta(days=1):
        raise UserError(text("done_later", day=on))
    missing = {ActionKind.REFERRED: "done_to_missing", ActionKind.CLOSED: "done_reason_missing"}
    if not detail and kind in missing:
        raise UserError(text(missing[ActionKind(kind)]))
    if len(detail) > LONGEST_DETAIL or not detail.isprintable():
        raise UserError(text("done_long", most=LONGEST_DETAIL))
    if len(clinician) > LONGEST_DETAIL or not clinician.isprintable():
        raise UserError(text("finding_clinician", most=LONGEST_DETAIL))
    return CaseAction(ActionKind(kind), on, now, detail, by, clinician)


def struck_out(
    actions: Sequence[CaseAction], place: int, by: str, name: str, why: str
) -> tuple[CaseAction, ...]:
    """Return entries of which one is struck out now, by a name or a login, and why.

    Raises UserError where it does not stand, and where nobody signs or says why.
    """
    if not 0 <= place < len(actions) or actions[place].struck:
        raise UserError(text("done_gone"))
    name, why = " ".join(name.split()), " ".join(why.split())
    if not why or not (name or by):
        raise UserError(text("done_strike_lacks" if why else "done_strike_why"))
    if max(len(name), len(why)) > LONGEST_DETAIL or not f"{name}{why}".isprintable():
        raise UserError(text("done_long", most=LONGEST_DETAIL))
    now = datetime.now(UTC)
    struck = replace(actions[place], struck=now, struck_by=by, struck_name=name, struck_why=why)
    return (*actions[:place], struck, *actions[place + 1 :])


def standing(actions: Iterable[CaseAction]) -> list[CaseAction]:
    """Return the entries that are not struck out, by the day on which they happened."""
    return sorted((one for one in actions if not one.struck), key=lambda one: (one.day, one.when))


def awaited_since(actions: Iterable[CaseAction], known: date | None = None) -> date | None:
    """Return since when a result of a case is awaited; None: none is, or it is known.

    A biopsy and an excision await theirs too, until a diagnosis by histopathology, `known`.
    """
    since, taken = None, (ActionKind.BIOPSIED, ActionKind.EXCISED)
    for one in standing(actions):
        awaits = one.kind in taken and (known is None or one.day > known)
        if one.kind is ActionKind.AWAITED or awaits:
            since = since or one.day
        elif one.kind is ActionKind.KNOWN:
            since = None
    return since


def is_acted_on(actions: Iterable[CaseAction], *, examined: bool = True) -> bool:
    """Tell whether something was done: not where nothing stands, nor where the patient was absent.

    An appointment that the patient did not attend leaves a case as it was before. `examined`:
    whether an examination is enough by itself.
    """
    done = standing(actions)
    if not done or done[-1].kind is ActionKind.ABSENT:
        return False
    weak = {ActionKind.ABSENT, *([] if examined else [ActionKind.EXAMINED])}
    return any(one.kind not in weak for one in done)


def is_treated(actions: Iterable[CaseAction], since: date | None, *, confirmed: bool) -> bool:
    """Tell whether something was done about a diagnosis that must not wait.

    An excision counts whenever it was made, a referral and a closing from the day of the diagnosis,
    `since`. Before something `confirmed` it, a biopsy and an awaited result count too. An
    examination alone never does.
    """
    counting = {ActionKind.REFERRED, ActionKind.CLOSED}
    if not confirmed:
        counting |= {ActionKind.BIOPSIED, ActionKind.AWAITED}
    done = standing(actions)
    return is_acted_on(done) and any(
        one.kind is ActionKind.EXCISED
        or (one.kind in counting and (since is None or one.day >= since))
        for one in done
    )


def action_to_json(one: CaseAction) -> list[str]:
    """Return an entry as a case book holds it."""
    struck = one.struck.isoformat() if one.struck else ""
    told = [one.kind.value, one.day.isoformat(), one.when.isoformat(), one.detail, one.by]
    return [*told, one.clinician, struck, one.struck_by, one.struck_name, one.struck_why]


def action_from_json(held: Sequence[Any]) -> CaseAction:
    """Return an entry that a case book holds; one of an older version lacks the last two."""
    kind, day, when, detail, by, clinician, struck, struck_by, *trace = held
    return CaseAction(
        ActionKind(kind),
        date.fromisoformat(day),
        datetime.fromisoformat(when),
        detail,
        by,
        clinician,
        datetime.fromisoformat(struck) if struck else None,
        struck_by,
        *trace,
    )
