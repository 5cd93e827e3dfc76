"""SNOMED CT codes of conditions and places on the body, and the systems that codes are of.

A condition has a code here only where one concept means it beyond doubt: a class that holds more
than one disease (Bowen's disease with actinic keratosis, benign keratosis, vascular lesion) has
none, nor has one of which we were not sure. No clinician has reviewed the table; what is written
with these codes says so. Places follow DICOM PS3.16, context groups 4029 and 8134.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from skindx.diagnosis.record import Candidate
from skindx.taxonomy import normalise
from skindx.taxonomy.body_sites import Site, site_table

SNOMED, SNOMED_URI = "SCT", "http://snomed.info/sct"
ICD10, ICD10_URI, ICD10_OID = (
    "I10C",
    "http://hl7.org/fhir/sid/icd-10-cm",
    "2.16.840.1.113883.6.90",
)
"""ICD-10-CM as DICOM, FHIR and an object identifier name it."""
NOT_REVIEWED = "The SNOMED CT codes were not clinically reviewed."


@dataclass(frozen=True)
class Concept:
    """A code and its meaning; its system is that of the table it stands in."""

    code: str
    meaning: str


@cache
def conditions() -> Mapping[str, Concept]:
    """Return SNOMED CT disorders by the normalised name of a class.

    The file has one a line: its code, its name, and the names of our classes where they are others.
    """
    table: dict[str, Concept] = {}
    for line in (Path(__file__).parent / "conditions.txt").read_text("utf-8").splitlines():
        code, _, names = line.partition(" ")
        meaning, *others = names.split(" = ")
        table |= {normalise(name): Concept(code, meaning) for name in others or [meaning]}
    return table


@cache
def sites() -> Mapping[Site, Concept]:
    """Return SNOMED CT body structures; `palm or sole` is no single one."""
    return {
        site: Concept(*row.concept.split(" ", 1))
        for site, row in site_table().items()
        if row.concept
    }


def snomed(candidate: Candidate) -> Concept | None:
    """Return the SNOMED CT disorder of a condition; None where none is certain."""
    return conditions().get(normalise(candidate.name))
