"""What a record states beside the answer: whose it is, of when, of where, and who corrected it.

Nothing is guessed: what nobody gave stays empty, and the printed record has a line to write it on.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from skindx.diagnosis.record import Candidate, Diagnosis
from skindx.diagnosis.scope import shown_tier
from skindx.taxonomy import Urgency
from skindx.texts.catalogue import text

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
    when: datetime | None = None
    """None: not known, as in a case of an older version."""

    @property
    def words(self) -> str:
        """Its name, with its code where it has one."""
        return f"{self.name} ({self.icd10})" if self.icd10 else self.name

    @property
    def basis(self) -> str:
        """What it rests on."""
        if self.confirmed_by:
            return text("recorded_confirmed", how=self.confirmed_by)
        return text("recorded_opinion" if self.opinion else "recorded_unstated")


@dataclass(frozen=True)
class Filing:
    """Names under which an answer is filed; "" and None where they were not given."""

    patient: str = ""
    """A pseudonym, or the patient ID of a clinic."""
    lesion: str = ""
    """Name of the lesion in a case book."""
    kept: bool = False
    """The answer is that of a kept case, whose heat maps and similar images are not kept."""
    recorded: RecordedDiagnosis | None = None

    @property
    def status(self) -> Literal["preliminary", "amended"]:
        """The status of the report, as FHIR names it. No report of skindx is final."""
        return "amended" if self.recorded else "preliminary"


NOT_FILED = Filing()


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


def status_sentence(filing: Filing) -> str:
    """Return the status of a report in a sentence."""
    return text("record_amended" if filing.recorded else "record_preliminary")


def record_lines(diagnosis: Diagnosis, filing: Filing, when: datetime) -> list[RecordLine]:
    """Return whose an answer is, of when and of where; `when` it was given, in local time."""
    return list(_lines(diagnosis, filing, when))


def _lines(diagnosis: Diagnosis, filing: Filing, when: datetime) -> Iterator[RecordLine]:
    yield RecordLine("patient", text("record_patient"), filing.patient)
    if filing.lesion:
        yield RecordLine("lesion", text("record_lesion"), filing.lesion)
    answered = "record_kept" if filing.kept else "record_answered"
    yield RecordLine("answered", text(answered), text("record_time", when=when))
    dates = photo_dates(diagnosis)
    known = [one or text("record_undated") for one in dates] if any(dates) else []
    label = text("record_photo", n=len(dates))
    yield RecordLine("photo-date", label, "; ".join(known) or text("record_undated"))
    patient = diagnosis.patient
    yield RecordLine("site", text("record_site"), patient.site or "")
    yield RecordLine("side", text("record_side"), patient.laterality or "")
    if one := filing.recorded:
        yield RecordLine("recorded", text("record_recorded"), one.words)
        yield RecordLine("recorded-basis", text("record_basis"), one.basis)
        yield RecordLine("recorded-by", text("record_by"), one.who or text("record_unknown"))
        noted = text("record_time", when=one.when) if one.when else text("record_unknown")
        yield RecordLine("recorded-on", text("record_on"), noted)


def photo_dates(diagnosis: Diagnosis) -> list[str]:
    """Return the own date of each photo, "" where it is not known.

    A date with its time has the offset from UTC that the file gives.
    """
    return [_dated(photo.taken) for photo in diagnosis.photos]


def _dated(taken: str) -> str:
    try:
        when = datetime.fromisoformat(taken)
    except ValueError:  # none, or a date that no version of ours wrote
        return ""
    return text("record_day" if len(taken) == _DAY else "record_time", when=when)


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


def tier_of(diagnosis: Diagnosis, candidate: Candidate) -> str:
    """Return the urgency of a condition as a table shows it."""
    return shown_tier(diagnosis, candidate) or "–"
