"""What a record states beside the answer: whose it is, of when, of where, and who corrected it.

Nothing is guessed: what nobody gave stays empty, and the printed record has a line to write it on.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import Literal

from skindx.diagnosis.case import FactsAdded, person_with
from skindx.diagnosis.case_actions import CaseAction, by_login
from skindx.diagnosis.record import Candidate, Diagnosis
from skindx.taxonomy import SkinClass, Urgency
from skindx.texts.catalogue import joined, text, word

_DAY = len("2026-11-29")
_BY_URGENCY: tuple[Urgency, ...] = ("urgent", "soon", "unknown", "routine")
"""The order of a differential: what must not wait comes first."""


@dataclass(frozen=True)
class RecordedDiagnosis:
    """A diagnosis that a clinician wrote down after the answer, which makes its report amended."""

    name: str
    icd10: str = ""
    confirmed_by: str = ""
    """How it was confirmed, such as histopathology; "" where nothing confirmed it."""
    opinion: bool = False
    """It is a clinical opinion, which confirms nothing."""
    who: str = ""
    """Login of whoever wrote it down; "" where it is not known."""
    clinician: str = ""
    """Name of the clinician whose diagnosis it is; "" where nobody gave it."""
    when: datetime | None = None
    """None: not known, as in a case of an older version."""
    key: str = ""
    """That of the model's class; "" where it is none."""
    within: SkinClass | None = None
    """The model's class that holds it with other diseases, where the codes differ."""
    replaced: datetime | None = None
    """When another one took its place, or it was taken back; None: it stands."""
    replaced_by: str = ""
    """Login of whoever did so."""
    reason: str = ""
    """Why, as that person wrote; "" where nobody said."""

    @property
    def words(self) -> str:
        """Its name, with its code where it has one."""
        name = word(self.name)
        return f"{name} ({self.icd10})" if self.icd10 else name

    @property
    def basis(self) -> str:
        """What it rests on."""
        if self.confirmed_by:
            return text("recorded_confirmed", how=self.confirmed_by)
        return text("recorded_opinion" if self.opinion else "recorded_no_basis")

    @property
    def found(self) -> str:
        """The diagnosis with its basis."""
        return text("recorded_found", name=self.words, basis=self.basis)

    @property
    def by(self) -> str:
        """Who recorded it, for clinicians: the clinician's name, or else the login."""
        return self.clinician or by_login(self.who)

    @property
    def history(self) -> str:
        """The diagnosis with who recorded it, as one that was replaced is named."""
        if not (self.when and self.by):
            return self.found
        return text("recorded_before", found=self.found, when=self.when, who=self.by)

    def is_other(self, one: "RecordedDiagnosis") -> bool:
        """Tell whether two entries name different diseases, whatever their codes and bases are."""
        return (self.key or self.name) != (one.key or one.name)


NoteKind = Literal["written", "changed", "removed", "fits"]
NOTED: dict[str, NoteKind] = {
    "written": "written",
    "changed": "changed",
    "removed": "removed",
    "fits": "fits",
}
"""What can become of a note; the last: it was found to still fit a later diagnosis."""


@dataclass(frozen=True)
class NoteChange:
    """What became of a note at one moment."""

    when: datetime
    by: str = ""
    """Login that did so; "" where nobody logs in."""
    what: NoteKind = "written"
    before: str = ""
    """The text that stood before; "" for none, and for one that an older version did not keep."""
    name: str = ""
    """Name of who wrote it; "" where nobody gave it."""

    @property
    def who(self) -> str:
        """Who did so, for clinicians: the name, or else the login in words."""
        return self.name or by_login(self.by)


@dataclass(frozen=True)
class Version:
    """One version of a report: the diagnosis that it states, since when, and by whom."""

    recorded: RecordedDiagnosis | None
    """None: it states the answer alone, or the diagnosis was taken back."""
    since: datetime | None = None
    """None: not known, or the first version, which is of the answer's own time."""
    by: str = ""
    """A clinician's name, or the login in words; "" where neither is known."""


@dataclass(frozen=True)
class Filing:
    """Names under which an answer is filed; "" and None where they were not given."""

    patient: str = ""
    """A pseudonym, or the patient ID of a clinic."""
    lesion: str = ""
    """Name of the lesion in a case book."""
    kept: bool = False
    """The answer is that of a kept case, whose heat maps and similar images are not kept."""
    undated: bool = False
    """It is not known when the answer was given; the time of keeping stands for it."""
    recorded: RecordedDiagnosis | None = None
    elsewhere: RecordedDiagnosis | None = None
    """The diagnosis of another case of the lesion that counts more than this one's, if any."""
    is_outdated: bool = False
    """Whether that one is confirmed and newer than the kept answer, so that it ends its advice."""
    is_untreated: bool = False
    """Whether a diagnosis of the lesion must not wait, and no treatment or referral is recorded."""
    elsewhere_done: str = ""
    """What was last done about another case of the lesion, in words, where nothing was here."""
    earlier: tuple[RecordedDiagnosis, ...] = ()
    """Diagnoses that were recorded and replaced or taken back, oldest first. With `recorded` None
    and some here, the last of them was taken back."""
    unrecorded: bool = False
    """An older version may have replaced diagnoses without keeping them here."""
    note: str = ""
    """What a clinician wrote about a kept case; it is for clinicians and not for the patient."""
    notes: tuple[NoteChange, ...] = ()
    """What became of the note, oldest first."""
    version: int = 0
    """That of the kept case, which grows with each change, also of its note and consents; 0: the
    answer is in no case book."""
    clinician: str = ""
    """Who signs the report, by name."""
    added: tuple[FactsAdded, ...] = ()
    """Facts about the person that were recorded after the answer, oldest first."""
    at_keeping: tuple[FactsAdded, ...] = ()
    """Those of `added` that the lesion's name gave, so that they were known at keeping."""
    actions: tuple[CaseAction, ...] = ()
    """What was done about the case, in the order in which it was written down."""

    @property
    def versions(self) -> tuple[Version, ...]:
        """What the reports on this answer stated, oldest first; the last is this one's."""
        found = [Version(None)]
        for one, following in zip_longest(self._entries, self._entries[1:]):
            found.append(Version(one, one.when, one.by))
            if one.replaced and (following is None or following.when != one.replaced):
                found.append(Version(None, one.replaced, by_login(one.replaced_by)))
        return tuple(found)

    @property
    def is_note_older(self) -> bool:
        """Whether the diagnosis changed after the note, and nobody found that it still fits."""
        stands = bool(self.note and self.notes and self.amended)
        return stands and self.amended is not None and self.notes[-1].when < self.amended

    @property
    def note_changed(self) -> NoteChange | None:
        """The last change of the note; None: a version that kept no history wrote it, or nobody."""
        return next((one for one in self.notes[::-1] if one.what != "fits"), None)

    @property
    def note_fits(self) -> NoteChange | None:
        """Who found that the note still fits the diagnosis that stands; None: nobody had to."""
        last = self.notes[-1] if self.note and self.notes else None
        return last if last and last.what == "fits" and not self.is_note_older else None

    @property
    def number(self) -> int:
        """The version of the report, of which it lists each; 0: the answer is in no case book."""
        return len(self.versions) if self.version else 0

    @property
    def others(self) -> tuple[RecordedDiagnosis, ...]:
        """What was recorded before and is another disease than what stands now, if one does."""
        now = self.recorded
        return tuple(one for one in self.earlier if now is None or one.is_other(now))

    @property
    def _entries(self) -> tuple[RecordedDiagnosis, ...]:
        return (*self.earlier, self.recorded) if self.recorded else self.earlier

    @property
    def last_confirmed(self) -> RecordedDiagnosis | None:
        """The latest diagnosis that something confirmed, also one that no longer stands."""
        return next((one for one in self._entries[::-1] if one.confirmed_by), None)

    @property
    def contradicts(self) -> str:
        """Which diagnosis by histopathology no longer stands, in a sentence; "": none did."""
        lost = [one.words for one in self.others if one.confirmed_by == BY_PATHOLOGY]
        key = "record_over_pathology" if self.recorded else "record_without_pathology"
        return text(key, name=lost[-1]) if lost else ""

    @property
    def weight(self) -> str:
        """What the recorded diagnosis means for the advice, in a sentence; "": there is none."""
        last, stands = self.last_confirmed, self.recorded
        if stands is None or stands is last:
            return text("recorded_counts") if stands else ""
        return text("recorded_unsettled", name=last.words) if last else text("recorded_unconfirmed")

    @property
    def is_confirmed(self) -> bool:
        """Whether a clinician recorded a diagnosis that something confirmed."""
        return bool(self.recorded and self.recorded.confirmed_by)

    @property
    def is_advice_past(self) -> bool:
        """Whether a diagnosis is recorded, and one that was confirmed counts more than advice."""
        return self.is_outdated or bool(self.recorded and self.last_confirmed)

    @property
    def past(self) -> str:
        """Why the advice is no longer current, in a sentence; "": nothing ended it."""
        return text("record_advice_past") if self.is_confirmed or self.is_outdated else ""

    @property
    def untreated(self) -> str:
        """That nothing was done about a diagnosis that must not wait, in a sentence; or ""."""
        is_named = bool(self.recorded or self.elsewhere)
        return text("done_untreated") if self.is_untreated and is_named else ""

    @property
    def found_elsewhere(self) -> str:
        """Which diagnosis and entry another case of the lesion has, in sentences; "" for none."""
        one, done = self.elsewhere, self.elsewhere_done
        return joined(
            text("record_elsewhere", found=one.history) if one else "",
            joined(text("record_elsewhere_done"), done) if done else "",
        )

    @property
    def status(self) -> Literal["preliminary", "amended"]:
        """The status of the report, as FHIR names it. No report of skindx is final."""
        return "amended" if self.recorded or self.earlier else "preliminary"

    @property
    def amended(self) -> datetime | None:
        """When this version was made; None: the report is not amended, or it is not known."""
        return self.versions[-1].since

    def seeds(self) -> list[str]:
        """Return of each version what tells its report from those before it, oldest first."""
        told = [f"{one.recorded and one.recorded.found} {one.since}" for one in self.versions]
        return [" ".join([self.patient, self.lesion, *told[: n + 1]]) for n in range(len(told))]

    def footer(self, when: datetime) -> tuple[str, str]:
        """Return whose report it is, and of which answer and version, as each page names them."""
        names = [self.patient or text("footer_patient"), self.lesion]
        facts = [text("footer_kept" if self.undated else "footer_answered", when=when)]
        if self.amended:
            facts.append(text("footer_amended", when=self.amended))
        else:
            facts.append(text(_UNDATED[self.status]))
        if self.number:
            facts.append(text("footer_version", number=str(self.number)))
        return " · ".join(filter(None, names)), " · ".join(facts)

    def file_name(self, when: datetime, ending: str, status: str = "") -> str:
        """Return a name that no other patient, lesion, answer or version has, in ASCII.

        It names the status of the report, or another one.
        """
        names = [_in_file_name(name) for name in (self.patient, self.lesion)]
        parts = [
            "skindx",
            *names,
            f"{when:%Y%m%d-%H%M%S}",
            status or self.status,
            str(self.number or ""),
        ]
        if self.version > self.number:  # a note or a consent was changed too
            parts.append(f"saved-{self.version}")
        return f"{'-'.join(filter(None, parts))}.{ending}"


NOT_FILED = Filing()
BY_PATHOLOGY = "histopathology"
_UNDATED = {"preliminary": "footer_preliminary", "amended": "footer_amended_undated"}
_MOST_IN_NAME = 40


def _in_file_name(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9]+", "-", plain)[:_MOST_IN_NAME].strip("-")


@dataclass(frozen=True)
class RecordLine:
    """One fact of a record with its label."""

    code: str
    label: str
    value: str
    """Empty: nobody gave it."""

    @property
    def sentence(self) -> str:
        """The line in a text, which says where nobody gave the fact."""
        return text("record_line", name=self.label, value=self.value or text("record_not_given"))


def status_sentence(filing: Filing, when: datetime) -> str:
    """Return the status of a report on an answer of `when`, and which report it replaces."""
    if filing.status == "preliminary":
        return text("record_preliminary")
    *_, before, _ = filing.versions
    since = before.since or (when if len(filing.versions) == 2 else None)
    changed = "record_changed" if filing.earlier else "record_amended"
    said = [text(changed if filing.recorded else "record_withdrawn")]
    if filing.amended:
        by = filing.versions[-1].by
        amended = {"when": filing.amended, **({"who": by} if by else {})}
        said.append(text("record_amended_by" if by else "record_amended_on", **amended))
    said.append(text("record_replaces", when=since) if since else text("record_replaces_all"))
    if since and (stated := before.recorded):
        said.append(text("record_replaced", name=stated.words))
    elif since and len(filing.versions) == 2:
        said.append(text("record_replaced_answer"))
    return joined(*said)


def record_lines(diagnosis: Diagnosis, filing: Filing, when: datetime) -> list[RecordLine]:
    """Return whose an answer is, of when and of where; `when` it was given, in local time."""
    return list(_lines(diagnosis, filing, when))


def _lines(diagnosis: Diagnosis, filing: Filing, when: datetime) -> Iterator[RecordLine]:
    yield RecordLine("patient", text("record_patient"), filing.patient)
    if filing.lesion:
        yield RecordLine("lesion", text("record_lesion"), filing.lesion)
    if filing.number:
        yield RecordLine("version", text("record_version"), str(filing.number))
    answered = "record_kept" if filing.undated else "record_answered"
    yield RecordLine("answered", text(answered), text("record_time", when=when))
    dates = photo_dates(diagnosis)
    known = [one or text("record_undated") for one in dates] if any(dates) else []
    yield RecordLine("photo-date", text("record_photo", n=len(dates)), "; ".join(known))
    patient = person_with(diagnosis.patient, filing.added)
    yield RecordLine("site", text("record_site"), word(patient.site or ""))
    yield RecordLine("side", text("record_side"), word(patient.laterality or ""))
    if one := filing.recorded:
        yield RecordLine("recorded", text("record_recorded"), one.found)
        noted = text("record_seconds", when=one.when) if one.when else text("record_unknown")
        yield RecordLine("recorded-on", text("record_on"), noted)
        if one.by:
            yield RecordLine("recorded-by", text("record_by"), one.by)
    elif filing.earlier:
        back = filing.versions[-1]
        value = text("record_seconds", when=back.since)
        if back.by:
            value = text("record_when_who", when=back.since, who=back.by)
        yield RecordLine("taken-back", text("record_back"), value)
    for before in reversed(filing.earlier):
        yield RecordLine("recorded-before", text("record_before"), before.history)


def photo_dates(diagnosis: Diagnosis) -> list[str]:
    """Return the own date of each photo, "" where it is not known.

    A date with its time has the offset from UTC that the file gives, by the name of the local zone
    where that is the same.
    """
    return [dated(photo.taken) for photo in diagnosis.photos]


def dated(taken: str) -> str:
    """Return a photo's own date in words; "" where it is not known."""
    try:
        when = datetime.fromisoformat(taken)
    except ValueError:  # none, or a date that no version of ours wrote
        return ""
    if len(taken) == _DAY:
        return text("record_day", when=when)
    here = when.astimezone() if when.tzinfo else when
    return text("record_time", when=here if here.utcoffset() == when.utcoffset() else when)


def urgent_first(candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """Return conditions as a differential lists them: urgent ones first, then by probability."""
    return tuple(
        sorted(candidates, key=lambda one: (_BY_URGENCY.index(one.urgency), -one.probability))
    )


def possible(diagnosis: Diagnosis) -> tuple[Candidate, ...]:
    """Return the conditions that the answer names: its set, or without sets the leading ones.

    None where the model abstains.
    """
    if diagnosis.abstained:
        return ()
    in_set = tuple(candidate for candidate in diagnosis.candidates if candidate.in_set)
    return in_set or diagnosis.candidates[: diagnosis.next_step.classes]


def agreement_with(diagnosis: Diagnosis, one: RecordedDiagnosis) -> str:
    """Return in a sentence whether the answer named the recorded diagnosis, or another."""
    if diagnosis.abstained:
        return text("model_named_none")
    first, names = diagnosis.candidates[0], [named.name for named in possible(diagnosis)]
    holds = class_words(one.name, one.within) if one.within else ""
    if _is_same(first, one):
        return joined(text("model_agreed", name=first.name), holds)
    if any(_is_same(named, one) for named in possible(diagnosis)):
        return joined(text("model_named_among", name=one.name, first=first.name), holds)
    return joined(text("model_named_other", names=names, name=one.name), holds)


def class_words(name: str, skin_class: SkinClass) -> str:
    """Return in which class the model has a disease that has a code of its own; or ""."""
    if not skin_class.icd10:
        return ""
    return text("record_within", name=name, label=skin_class.name, code=skin_class.icd10)


def _is_same(named: Candidate, one: RecordedDiagnosis) -> bool:
    key = one.within.key if one.within else one.key
    return named.key == key if key else named.name == one.name
