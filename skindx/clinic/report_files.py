"""The files of clinical formats that `skindx diagnose` writes beside its answer."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from skindx.clinic.fhir import Subject, fhir_json, require_fhir
from skindx.core.atomic_files import atomic_file
from skindx.diagnosis.record import Diagnosis

_PRIVATE = 0o600
"""Health data: for their owner alone."""


@dataclass(frozen=True)
class ReportFiles:
    """Which files are asked for, and whom they are about."""

    fhir: Path | None = None
    patient_id: str = ""
    study_uid: str = ""

    def check(self) -> None:
        """Raise UserError, before any work, for what could not be written in the end."""
        if self.fhir:
            require_fhir("--fhir")

    def write(self, diagnosis: Diagnosis, metrics: dict[str, Any] | None) -> None:
        """Write what is asked for; each file is whole or absent. `metrics` are the bundle's own."""
        when = datetime.now().astimezone()
        if self.fhir:
            subject = Subject(self.patient_id, self.study_uid)
            _write(self.fhir, fhir_json(diagnosis, metrics, when, subject))


def _write(path: Path, data: bytes) -> None:
    with atomic_file(path, mode=_PRIVATE) as file:
        file.write_bytes(data)
