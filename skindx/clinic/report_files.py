"""The files of clinical formats that `skindx diagnose` writes beside its answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from skindx.clinic.fhir import Subject, fhir_json, require_fhir
from skindx.clinic.source_photos import Named, check_identity, identity_of, read_headers, wrap_photo
from skindx.clinic.structured_report import require_sr, structured_report
from skindx.core.atomic_files import atomic_file
from skindx.core.errors import UserError
from skindx.diagnosis.record import Diagnosis
from skindx.imaging.dicom_facts import DicomFacts

_PRIVATE = 0o600
"""Health data: for their owner alone."""


@dataclass
class ReportFiles:
    """Which files are asked for, and whom they are about."""

    fhir: Path | None = None
    dicom_sr: Path | None = None
    named: Named = field(default_factory=Named)
    pdf: Path | None = None
    """Written by another, and no more in the place of a photo or a report than these."""
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
        if self.named != Named() and not (self.fhir or self.dicom_sr):
            raise UserError(
                "--patient-id and --study-uid name whose photos a report is about; give --fhir or "
                "--dicom-sr too, or leave them out."
            )
        if self.fhir:
            require_fhir("--fhir")
        if self.dicom_sr:
            require_sr()
        if self.fhir or self.dicom_sr:
            self._headers = read_headers(photos, self.named)
        if self.dicom_sr:
            check_identity(self._headers, self.named)

    def write(
        self, diagnosis: Diagnosis, photos: Sequence[bytes], metrics: dict[str, Any] | None
    ) -> list[Path]:
        """Write what is asked for, each file whole or absent, and return all of them.

        A photo that is no DICOM file is wrapped beside a structured report. `metrics` are the
        bundle's own.
        """
        when = datetime.now().astimezone()
        files: dict[Path, bytes] = {}
        headers = self._headers
        if path := self.dicom_sr:
            whose = identity_of(self.named, photos, headers)
            facts: list[DicomFacts] = []
            for number, (photo, header) in enumerate(zip(photos, headers, strict=True), 1):
                if header is None:
                    wrapped, made = wrap_photo(photo, number, whose, diagnosis.patient)
                    files[self._wrapped(path, number)] = wrapped
                facts.append(header or made)
            files[path] = structured_report(diagnosis, facts, metrics, when)
            headers = list(facts)
        if self.fhir:
            subject = subject_of(headers, self.named)
            files[self.fhir] = fhir_json(diagnosis, metrics, when, subject)
        for file, data in files.items():
            with atomic_file(file, mode=_PRIVATE) as temporary:
                temporary.write_bytes(data)
        return list(files)

    @staticmethod
    def _wrapped(report: Path, number: int) -> Path:
        return report.with_name(f"{report.stem}-photo-{number}.dcm")


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
