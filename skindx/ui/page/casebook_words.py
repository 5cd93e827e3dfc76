"""What the case book says of kept cases: their names, dates, consents and earlier entries."""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import date

from skindx.casebook.deletions import Deletion
from skindx.casebook.findings import ConfirmedFinding
from skindx.casebook.kept_case import (
    KeptCase,
    KeptScan,
    LesionHistory,
    Purpose,
    consent_changes,
)
from skindx.casebook.lesion_state import PRESSING
from skindx.diagnosis.case import facts_list, patient_facts
from skindx.diagnosis.checklist_advice import Tier, tier_of_advice
from skindx.diagnosis.filing import Filing, NoteChange, RecordedDiagnosis
from skindx.diagnosis.intake import INTAKE
from skindx.diagnosis.record import Photo
from skindx.taxonomy import Taxonomy
from skindx.texts.catalogue import joined, text, word


def finding_words(lesion: LesionHistory, taxonomy: Taxonomy) -> str:
    """Return the recorded diagnoses of a lesion and what each rests on; "" where there is none.

    Behind them stands what was confirmed last in each case, where it no longer stands.
    """
    known = {skin_class.key: skin_class.name for skin_class in taxonomy.classes}

    def named(one: ConfirmedFinding) -> str:
        return one.outside.name if one.outside else known.get(one.confirmed, one.confirmed)

    said = []
    for one in lesion.findings:
        how = one.confirmed_by or text("recorded_no_basis")
        said.append(text("book_finding", name=named(one), how=how))
    for told in lesion.lapsed:
        if told.lapsed:
            gone, when = told.lapsed.finding, told.lapsed.replaced.astimezone()
            key = "book_finding_replaced" if told.was_replaced else "book_finding_taken_back"
            said.append(text(key, name=named(gone), how=gone.confirmed_by, when=when))
    return ", ".join(dict.fromkeys(said))


_GONE = {"case": "book_gone_case", "scan": "book_gone_scan"}


def deletion_words(one: Deletion) -> str:
    """Return in sentences what was deleted, when and by whom."""
    values = {"n": one.photos, "when": one.when.astimezone()}
    if one.kept is None:
        said = text("book_gone_unread", when=values["when"])
    else:
        said = text(_GONE[one.kind], kept=one.kept, **values)
    by_login = text("book_gone_by", who=one.by) if one.by else ""
    return joined(said, text("book_gone_operator") if one.by_operator else by_login)


def is_advice_past(urgency: Tier | None, *, given: bool, confirmed: bool) -> bool:
    """Tell whether an answer's urgency is shown as past: of a case with a confirmed diagnosis.

    Beside one that nothing confirmed an urgent advice stands, and no other one.
    """
    return confirmed or (given and urgency not in PRESSING)


def same_photos(one: Sequence[Photo], other: Sequence[Photo]) -> bool:
    """Tell whether two answers share a photo file."""
    return not {photo.sha256 for photo in one}.isdisjoint(photo.sha256 for photo in other)


def time_apart(before: KeptCase, after: KeptCase) -> str:
    """Return how far apart two cases are, by the dates of their photos where both are known."""
    if same_photos(before.diagnosis.photos, after.diagnosis.photos):
        return text("book_same_photo")
    first, last = before.photographed, after.photographed
    if first and last:
        days = abs((last - first).days)
        return text("book_days_apart", n=days) if days else text("book_same_day")
    days = abs((after.taken.date() - before.taken.date()).days)
    kept = text("book_kept_apart", n=days) if days else text("book_kept_same_day")
    if first or last:
        return joined(text("book_later_unknown" if first else "book_earlier_unknown"), kept)
    return joined(text("book_both_unknown"), kept)


_PURPOSE_NAMES: dict[Purpose, str] = {
    "keep": "book_purpose_keep",
    "compare": "book_purpose_compare",
    "train": "book_purpose_train",
}


def purpose_names(purposes: Collection[Purpose]) -> list[str]:
    """Return what a consent is to, in the order of a form."""
    return [text(key) for one, key in _PURPOSE_NAMES.items() if one in purposes]


def consent_words(case: KeptCase) -> list[str]:
    """Return in sentences what a patient agreed to and withdrew, oldest first."""
    said = []
    for number, one in enumerate(consent_changes(case.consents)):
        values = {"purposes": purpose_names(one.purposes), "when": one.when.astimezone()}
        if number == 0 and case.unrecorded:
            said.append(text("book_held", **values))
        elif one.withdrawn:
            by_login = text("book_withdrew_by", **values, who=one.who) if one.who else ""
            said.append(by_login or text("book_withdrew", **values))
        else:
            by_login = text("book_agreed_by", **values, who=one.who) if one.who else ""
            said.append(by_login or text("book_agreed", **values))
    return said


def same_offered(
    lesion: LesionHistory, cases: Sequence[KeptCase], known: Collection[str]
) -> dict[str, KeptCase]:
    """Return for each case without a diagnosis the lesion's latest case with a confirmed one.

    Empty where diagnoses of the lesion differ; `known` are the keys of the classes of a form.
    """
    found = [
        case
        for case in cases
        if case.finding.is_confirmed and (case.outside or case.confirmed in known)
    ]
    if not found or lesion.differ:
        return {}
    return {case.id: found[-1] for case in cases if not case.finding.is_given}


def recorded_words(one: RecordedDiagnosis) -> str:
    """Return a recorded diagnosis with its basis, its time and the login."""
    if one.when:
        on = text("book_recorded_on", when=one.when)
        written = text("book_recorded_on_by", when=one.when, who=one.by) if one.by else on
    else:
        written = text("book_recorded_by", who=one.by) if one.by else ""
    return ", ".join(filter(None, (one.found, written)))


_NOTED = {
    "written": ("book_note_written_then", "book_note_written_by"),
    "changed": ("book_note_changed_then", "book_note_changed_by"),
    "removed": ("book_note_removed_then", "book_note_removed_by"),
    "fits": ("book_note_fits_then", "book_note_fits_by"),
}


def note_words(filing: Filing) -> list[tuple[str, str]]:
    """Return in sentences what became of a note, when and by whom, the latest first.

    Beside each stands the text that it replaced; "" where there was none, or none was kept.
    """
    return [(_noted_words(one), one.before) for one in filing.notes[::-1]]


def note_state(filing: Filing) -> str:
    """Return in sentences who wrote the note and when, and whether it fits the diagnosis."""
    last = [one for one in (filing.note_changed, filing.note_fits) if one]
    older = text("book_note_older") if filing.is_note_older else ""
    return joined(*map(_noted_words, last), older)


def _noted_words(one: NoteChange) -> str:
    then, by = _NOTED[one.what]
    who = one.name or one.by
    return text(by, when=one.when, who=who) if who else text(then, when=one.when)


def earlier_words(filing: Filing) -> list[str]:
    """Return the diagnoses that stood before, the latest first, and how each came to its end."""
    said = []
    for one, after in zip(filing.earlier, (*filing.earlier, filing.recorded)[1:], strict=True):
        replaced = after is not None and after.when == one.replaced
        if one.replaced_by:
            key = "book_replaced_by" if replaced else "book_taken_back_by"
            end = text(key, when=one.replaced, who=one.replaced_by)
        else:
            end = text("book_replaced" if replaced else "book_taken_back", when=one.replaced)
        why = text("book_reason_was", reason=one.reason) if one.reason else ""
        said.append(joined(f"{recorded_words(one)}, {end}.", why))
    return said[::-1]


def alone_words(cases: Sequence[KeptCase]) -> list[str]:
    """Return in sentences why cases are never shown beside another, for those of which it holds."""
    names, said = case_names(cases), []
    for case in cases:
        if "compare" in case.purposes:
            continue
        withdrawn = [
            one.when
            for one in consent_changes(case.consents)
            if one.withdrawn and "compare" in one.purposes
        ]
        if withdrawn:
            when = withdrawn[-1].astimezone()
            said.append(text("book_alone_withdrawn", case=names[case.id], when=when))
        else:
            said.append(text("book_alone_never", case=names[case.id]))
    return said


def case_names(cases: Sequence[KeptCase]) -> dict[str, str]:
    """Return a name for each case, by its id: the day of its photos, and when it was kept.

    It has no number, so that it stays the same when another case is deleted.
    """
    kept = kept_apart(cases)
    return {
        case.id: text("book_case_dated", kept=kept[case.id], day=_short(case.photographed))
        if case.photographed
        else text("book_case_undated", kept=kept[case.id])
        for case in cases
    }


def kept_apart(cases: Sequence[KeptCase]) -> dict[str, str]:
    """Return when each case was kept, by its id, as exactly as cases of one day of photos need."""
    names: dict[str, str] = {}
    for day in {case.photographed for case in cases}:
        names |= names_apart([case for case in cases if case.photographed == day])
    return names


def person_words(case: KeptCase) -> list[str]:
    """Return the facts that stand with a case, and which of place and date is missing."""
    person = case.person
    placed = person if person.site else person.model_copy(update={"laterality": None})
    facts = [f"{name} {value}" for name, value in patient_facts(placed)]
    side = None if person.site else person.laterality
    place = [] if person.site else [text("book_no_place")]
    if side:
        place = [f"{word('side')} {word(side)}", *place]
    return [*facts, *place, *([] if case.photographed else [text("book_undated")])]


def added_words(case: KeptCase) -> list[str]:
    """Return in sentences which facts were added after the answer, when and by whom.

    Those that the lesion's name gave when the case was kept stand with the person already.
    """
    said = []
    for one in case.added:
        if one in case.facts_at_keeping:
            continue
        side = None if one.facts.site else one.facts.laterality
        names = facts_list(one.facts.model_copy(update={"laterality": None}) if side else one.facts)
        names += [text("fact", name="side", value=word(side))] if side else []
        absent = [INTAKE[name].noun or name for name, value in one.given.items() if value is None]
        names += [text("fact", name=name, value=text("record_not_given")) for name in absent]
        when = one.when.astimezone()
        by_login = text("book_facts_added_by", facts=names, when=when, who=one.by) if one.by else ""
        said.append(by_login or text("book_facts_added", facts=names, when=when))
    return said


def times_words(lesion: LesionHistory) -> str:
    """Return how many cases a lesion has, and of when the latest is, whose advice is shown."""
    if lesion.photographed:
        return text("book_dated_times", n=lesion.cases, last=lesion.photographed)
    return text("book_kept_times", n=lesion.cases, last=lesion.last.astimezone())


def uncompared_words(lesion: LesionHistory) -> str:
    """Return in a sentence that the cases of a lesion cannot be compared; "" where they can."""
    return text("book_uncompared") if lesion.cases > 1 and not lesion.is_comparable else ""


def _short(day: date) -> str:
    return text("record_short", when=day)


def changes(before: KeptCase | None, after: KeptCase | None) -> str:
    """Return in a sentence whether two answers of one lesion advise the same; "" for one answer."""
    if before is None or after is None:
        return ""
    first, last = (text(f"tier_{tier_of_advice(one.diagnosis)}").lower() for one in (before, after))
    if first == last:
        return text("book_advice_same", tier=first)
    return text("book_advice_changed", first=first, last=last)


def names_apart(kept: Sequence[KeptCase | KeptScan]) -> dict[str, str]:
    """Return a name for each case or scan, by its id: when it was kept, as exactly as needed.

    The time is local. Of one minute they are named with seconds, and of one second with a number.
    """
    times = {one.id: one.taken.astimezone() for one in kept}
    days = {key: _short(time) for key, time in times.items()}
    names = {key: f"{days[key]}, {time:%H:%M %Z}" for key, time in times.items()}
    alike = Counter(names.values())
    names |= {
        key: f"{days[key]}, {time:%H:%M:%S %Z}"
        for key, time in times.items()
        if alike[names[key]] > 1
    }
    alike, seen = Counter(names.values()), Counter[str]()
    for key, name in names.items():
        if alike[name] > 1:
            seen[name] += 1
            names[key] = f"{name} ({seen[name]})"
    return names
