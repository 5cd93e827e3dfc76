"""The files of a report that are asked for, and the DICOM files among them with their photos."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from skindx.clinic.fhir import Attachments, Subject, fhir_json, require_fhir
from skindx.clinic.source_photos import (
    Named,
    check_identity,
    identity_of,
    read_headers,
    wrap_photo,
)
from skindx.clinic.structured_report import structured_report
from skindx.core.errors import UserError
from skindx.core.machine import require_extra
from skindx.core.private_files import write_private
from skindx.diagnosis.filing import NOT_FILED, Filing
from skindx.diagnosis.record import Diagnosis
from skindx.diagnosis.report import PdfPart
from skindx.imaging.dicom_facts import DicomFacts

MakePdf = Callable[[str, datetime, PdfPart], bytes]
"""Makes the printed report from a patient ID ("": not known) and the time of the answer."""


@dataclass
class ReportFiles:
    """Which files are asked for, and whom they are about."""

    fhir: Path | None = None
    dicom_sr: Path | None = None
    named: Named = field(default_factory=Named)
    pdf: Path | None = None
    part: PdfPart = "full"
    """What the file `pdf` holds; FHIR carries the full report."""
    _headers: list[DicomFacts | None] = field(default_factory=list)

    def check(self, photos: Sequence[bytes], paths: Sequence[Path] = ()) -> None:
        """Raise UserError, before any work, for what could not or must not be written in the end.

        `paths` are those of the photos, which no report replaces.
        """
        outputs = [path for path in (self.pdf, self.fhir, self.dicom_sr) if path]
        if self.dicom_sr:
            outputs += [self._wrapped(self.dicom_sr, n) for n in range(1, len(photos) + 1)]
        taken = {path.resolve() for path in paths}
        for path in outputs:
            if path.resolve() in taken:
                raise UserError(f"{path} is a photo or another report; give another file.")
            if path.is_dir():
                raise UserError(f"{path} is a folder; give a file.")
            taken.add(path.resolve())
        if self.named.study_uid and not (self.fhir or self.dicom_sr):
            raise UserError(
                "--study-uid works only with --fhir or --dicom-sr; add one of them, or remove "
                "--study-uid."
            )
        if self.named.patient_id and not outputs:
            raise UserError(
                "--patient-id works only with --pdf, --fhir or --dicom-sr; add one of them, or "
                "remove --patient-id."
            )
        if self.part != "full" and not self.pdf:
            raise UserError(
                f"--pdf-part {self.part} works only with --pdf; add --pdf FILE, or remove it."
            )
        if self.fhir:
            require_fhir("--fhir")
        if self.dicom_sr:
            require_extra("clinic", "highdicom", "pydicom", purpose="--dicom-sr")
        self._headers = read_headers(photos, self.named) if outputs else []
        if self.dicom_sr:
            check_identity(self._headers, self.named)

    def write(
        self,
        diagnosis: Diagnosis,
        photos: Sequence[bytes],
        metrics: dict[str, Any] | None,
        pdf: MakePdf | None = None,
    ) -> list[Path]:
        """Write what is asked for, each file whole or absent, and return all of them.

        A photo that is no DICOM file is wrapped beside a structured report. `metrics` are the
        bundle's own. `pdf` makes the printed report, which FHIR carries too.
        """
        when = datetime.now().astimezone()
        files: dict[Path, bytes] = {}
        headers = self._headers
        if path := self.dicom_sr:
            report, wrapped, facts = dicom_files(
                diagnosis, photos, headers, metrics, when, named=self.named
            )
            for number, photo in wrapped.items():
                files[self._wrapped(path, number)] = photo
            files[path] = report
            headers = list(facts)
        subject = subject_of(headers, self.named)
        if self.pdf and pdf:
            files[self.pdf] = pdf(subject.patient_id, when, self.part)
        if self.fhir:
            attached = Attachments(pdf=pdf(subject.patient_id, when, "full") if pdf else b"")
            files[self.fhir] = fhir_json(diagnosis, metrics, when, subject, attached)
        for file, data in files.items():
            write_private(file, data)
        return list(files)

    @staticmethod
    def _wrapped(report: Path, number: int) -> Path:
        return report.with_name(f"{report.stem}-photo-{number}.dcm")


def dicom_files(
    diagnosis: Diagnosis,
    photos: Sequence[bytes],
    headers: Sequence[DicomFacts | None],
    metrics: dict[str, Any] | None,
    when: datetime,
    *,
    named: Named,
    filing: Filing = NOT_FILED,
) -> tuple[bytes, dict[int, bytes], list[DicomFacts]]:
    """Return a structured report, each wrapped photo by its number, and the photos' headers.

    A new study is of the day of its first photo, where that is known; the date of a study that
    exists is not.
    """
    whose = identity_of(named, photos, headers)
    days = [photo.taken[:10].replace("-", "") for photo in diagnosis.photos]
    if not named.study_uid and not any(headers) and all(days):
        whose = replace(whose, study_date=min(days))
    wrapped: dict[int, bytes] = {}
    facts: list[DicomFacts] = []
    for number, (photo, header) in enumerate(zip(photos, headers, strict=True), 1):
        if header:
            facts.append(header)
            continue
        wrapped[number], made = wrap_photo(photo, number, whose, diagnosis.patient)
        facts.append(made)
    report = structured_report(diagnosis, facts, metrics, when, filing)
    return report, wrapped, facts


def subject_of(headers: Sequence[DicomFacts | None], named: Named | None = None) -> Subject:
    """Return whom an answer is about: as named, else as the first photo that is DICOM says."""
    identities = [facts.identity for facts in headers if facts]
    first = identities[0] if identities else None
    named = named or Named()
    return Subject(
        named.patient_id or (first.patient_id if first else ""),
        first.study_uid if first else named.study_uid,
        tuple(facts.identity.instance_uid if facts else "" for facts in headers),
    )
