"""What a DICOM header says of a photo and its patient: facts without names, identity apart.

Nothing here opens a file: `skindx.imaging.dicom` does, in a process of its own.
"""

import hmac
import math
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Literal, get_args

from skindx.core.errors import UserError
from skindx.core.private_files import write_private
from skindx.core.untrusted import read_plain
from skindx.imaging.image_formats import DamagedImage
from skindx.taxonomy.lexicon import SITES, Laterality, site_of, snomed_sites

DicomKind = Literal["photograph", "dermoscopy", "secondary capture"]

_CLASSES: dict[str, DicomKind] = {
    "1.2.840.10008.5.1.4.1.1.77.1.4": "photograph",
    "1.2.840.10008.5.1.4.1.1.77.1.7": "dermoscopy",
    "1.2.840.10008.5.1.4.1.1.7": "secondary capture",
    "1.2.840.10008.5.1.4.1.1.7.4": "secondary capture",
}
"""SOP classes that hold photos; of a secondary capture the modality decides."""
_MODALITIES = {"XC", "DMS", "OT", ""}
"""External-camera photography, dermoscopy, other, not given."""
_MICROSCOPY = {"SM", "GM"}
_SEXES = {"M": "male", "F": "female", "O": "other"}
_SIDES = {"L": "left", "R": "right", "B": "both sides", "U": "unpaired"}
_BURNED_IN = {"YES": True, "NO": False}
_UNIT_YEARS = {"Y": 1.0, "M": 1 / 12, "W": 7 / 365.2425, "D": 1 / 365.2425}
_OLDEST = 120
_LONGEST = 200
"""Characters kept of a text."""
_SQUARE = 0.01
"""Relative difference of the spacings of rows and columns; more is no photograph's pixel."""
_SPACING_MM = (1e-3, 10.0)


@dataclass(frozen=True)
class DicomIdentity:
    """Who and which study a file belongs to, as it says; for an answer that goes back there.

    Never logged, and never in a dataset: `pseudonym` makes of an id what may be kept.
    """

    patient_id: str = ""
    patient_name: str = ""
    birth_date: str = ""
    sex: str = ""
    study_uid: str = ""
    series_uid: str = ""
    instance_uid: str = ""
    class_uid: str = ""
    study_id: str = ""
    study_date: str = ""
    study_time: str = ""
    accession_number: str = ""
    referring_physician: str = ""
    acquisition_date: str = ""


_IDENTITY = {
    "patient_id": "PatientID",
    "patient_name": "PatientName",
    "birth_date": "PatientBirthDate",
    "sex": "PatientSex",
    "study_uid": "StudyInstanceUID",
    "series_uid": "SeriesInstanceUID",
    "instance_uid": "SOPInstanceUID",
    "class_uid": "SOPClassUID",
    "study_id": "StudyID",
    "study_date": "StudyDate",
    "study_time": "StudyTime",
    "accession_number": "AccessionNumber",
    "referring_physician": "ReferringPhysicianName",
    "acquisition_date": "AcquisitionDate",
}


@dataclass(frozen=True)
class DicomFacts:
    """What may be used of a header; None or "" where it says nothing that can be used."""

    kind: DicomKind
    modality: str
    width: int
    height: int
    """Pixels of the stored frame."""
    age: int | None = None
    """Full years."""
    sex: str = ""
    """female, male or other."""
    site: str = ""
    """One of `body_sites.SITES`."""
    region: str = ""
    """The anatomic region in the file's words."""
    region_code: str = ""
    """SCHEME:VALUE of its code, such as SCT:66643007."""
    laterality: str = ""
    """left, right, both sides or unpaired."""
    mm_per_pixel: float | None = None
    """Millimetres on the skin in a pixel."""
    burned_in: bool | None = None
    """The file says whether annotations that may name the patient are part of the pixels."""
    descriptions: Mapping[str, str] = field(default_factory=dict, repr=False)
    """DESCRIPTIONS by keyword, those that are given; free text, which may name a person."""
    identity: DicomIdentity = field(default_factory=DicomIdentity, repr=False)

    @property
    def patient(self) -> dict[str, int | str]:
        """The given facts about the person and the place: age, sex, site and laterality."""
        side = self.laterality if self.laterality in get_args(Laterality) else ""
        facts = {"age": self.age, "sex": self.sex, "site": self.site, "laterality": side}
        return {name: value for name, value in facts.items() if value not in (None, "")}

    @classmethod
    def parse(cls, values: dict[str, Any]) -> "DicomFacts":
        """Return the facts of plain values, as `dataclasses.asdict` makes them."""
        return cls(**{**values, "identity": DicomIdentity(**values["identity"])})


Description = Literal[
    "AdmittingDiagnosesDescription",
    "ImageComments",
    "PerformedProcedureStepDescription",
    "ProtocolName",
    "RequestedProcedureDescription",
    "SeriesDescription",
    "StudyDescription",
]
"""Texts in which archives write what an image shows."""
DESCRIPTIONS: tuple[Description, ...] = get_args(Description)
TAGS = (
    *_IDENTITY.values(),
    *DESCRIPTIONS,
    "AnatomicRegionSequence",
    "BodyPartExamined",
    "BurnedInAnnotation",
    "ContentDate",
    "ImageLaterality",
    "Laterality",
    "Modality",
    "PatientAge",
    "PixelSpacing",
    "PrimaryAnatomicStructureSequence",
)
"""Keywords of all elements that are read for facts."""


def facts_of(header: Any, kind: DicomKind) -> DicomFacts:
    """Return the facts of a header, a pydicom Dataset that names its size."""
    region, code, site = _region(header)
    return DicomFacts(
        kind=kind,
        modality=_text(header, "Modality"),
        width=int(header.Columns),
        height=int(header.Rows),
        age=_age(header),
        sex=_SEXES.get(_text(header, "PatientSex"), ""),
        site=site,
        region=region,
        region_code=code,
        laterality=_SIDES.get(_text(header, "ImageLaterality") or _text(header, "Laterality"), ""),
        mm_per_pixel=_spacing(header),
        burned_in=_BURNED_IN.get(_text(header, "BurnedInAnnotation").upper()),
        descriptions={name: text for name in DESCRIPTIONS if (text := _text(header, name))},
        identity=DicomIdentity(**{name: _text(header, tag) for name, tag in _IDENTITY.items()}),
    )


def kind_of(header: Any) -> DicomKind:
    """Return what a header says that its file shows. Raises DamagedImage for no photo of skin."""
    from pydicom.uid import UID

    uid, modality = _text(header, "SOPClassUID"), _text(header, "Modality").upper()
    if not uid:
        raise DamagedImage(
            "the header has no SOP class, so the kind of image is unknown", "unsupported-format"
        )
    if uid not in _CLASSES or modality in _MICROSCOPY:
        what = harmless(UID(uid).name, r"[\w ,.()-]+")
        what = f"microscopy ({modality}) in {what}" if modality in _MICROSCOPY else what
        raise DamagedImage(
            f"the file has an image of the kind {what}; give a photograph or a dermoscopic image "
            "of skin",
            "unsupported-format",
        )
    if modality not in _MODALITIES:
        raise DamagedImage(
            f"the file is a DICOM file of modality {harmless(modality, '[A-Z]{2,10}')}; give a "
            "photograph (XC) or a dermoscopic image (DMS)",
            "unsupported-format",
        )
    return "dermoscopy" if modality == "DMS" else _CLASSES[uid]


def harmless(text: str, pattern: str) -> str:
    """Return a text of a header for a message; of a broken one it may hold anybody's name."""
    return text if re.fullmatch(pattern, text) and len(text) < _LONGEST else "that is not known"


def _text(header: Any, keyword: str) -> str:
    """Return one value as plain text; "" where it is absent or cannot be read."""
    try:
        value = header.get(keyword)
    except Exception:  # a broken value says nothing; the pixels may be sound
        return ""
    plain = "" if value is None else str(value)
    return " ".join("".join(c if c.isprintable() else " " for c in plain).split())[:_LONGEST]


def _age(header: Any) -> int | None:
    """Return full years by Patient's Age, such as 045Y or 018M, else by the date of birth."""
    text = _text(header, "PatientAge").upper()
    if len(text) == 4 and text[:3].isdecimal() and text[3] in _UNIT_YEARS:
        years = int(text[:3]) * _UNIT_YEARS[text[3]]
    else:
        born = _date(header, "PatientBirthDate")
        days = [_date(header, name) for name in ("AcquisitionDate", "ContentDate", "StudyDate")]
        taken = next(filter(None, days), None)
        if born is None or taken is None or taken < born:
            return None
        years = taken.year - born.year - ((taken.month, taken.day) < (born.month, born.day))
    return math.floor(years) if years <= _OLDEST else None


def _date(header: Any, keyword: str) -> date | None:
    text = _text(header, keyword)
    try:
        return date.fromisoformat(text) if len(text) == 8 else None
    except ValueError:
        return None


def _region(header: Any) -> tuple[str, str, str]:
    """Return the region in words, its code, and our site; the first that is given."""
    for keyword in ("AnatomicRegionSequence", "PrimaryAnatomicStructureSequence"):
        try:
            items: Iterable[Any] = header.get(keyword) or ()
            for item in items:
                value, scheme = _text(item, "CodeValue"), _text(item, "CodingSchemeDesignator")
                meaning = _text(item, "CodeMeaning")
                if value or meaning:
                    site = snomed_sites().get(value, "") if scheme in ("SCT", "99SCT") else ""
                    return meaning, f"{scheme}:{value}" if value else "", site or _site(meaning)
        except Exception:  # noqa: S112 (a broken sequence says nothing)
            continue
    part = _text(header, "BodyPartExamined")
    return part.lower(), "", _site(part)


def _site(text: str) -> str:
    site = site_of(text.casefold().removeprefix("skin of "))
    return site if site in SITES else ""


def _spacing(header: Any) -> float | None:
    """Return millimetres in a pixel where rows and columns agree and the value can be true."""
    try:
        down, across = (float(value) for value in header.get("PixelSpacing"))
    except Exception:
        return None
    low, high = _SPACING_MM
    sane = low <= min(down, across) and max(down, across) <= high
    return (down + across) / 2 if sane and abs(down - across) <= _SQUARE * down else None


KEY_VARIABLE = "SKINDX_DICOM_KEY"
"""Environment variable that names the file with the key of pseudonyms."""
_KEY_BYTES = 32


def read_key(path: Path, *, create: bool = False) -> bytes:
    """Return the key of pseudonyms in a file that only its owner can read.

    With `create` a file that is not there is made. Raises UserError.
    """
    if create and not path.exists():
        try:
            write_private(path, secrets.token_hex(_KEY_BYTES) + "\n")
        except OSError as error:
            raise UserError(
                f"the key file {path} cannot be written ({error.strerror}); give the path of "
                "another file."
            ) from None
    content = read_plain(path, 1024)
    if path.stat().st_mode & 0o077:
        raise UserError(f"other users can read the key file {path}; run `chmod 600 {path}`.")
    try:
        key = bytes.fromhex(content.decode().strip())
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise UserError(
            f"{path} is not a key file of {2 * _KEY_BYTES} hexadecimal digits; create one with "
            f"`openssl rand -hex {_KEY_BYTES} > {path}`."
        )
    return key


def named_key() -> Path | None:
    """Return the key file that the environment names."""
    name = os.environ.get(KEY_VARIABLE)
    return Path(name) if name else None


def pseudonym(key: bytes, what: Literal["patient", "study", "image"], identifier: str) -> str:
    """Return a code in place of an id: the same each time, so that images of a patient stay joined.

    Keyed (HMAC-SHA256): ids are short, and a plain hash of one is found by trying all. "" of "".
    """
    if not identifier:
        return ""
    text = f"{what}\n{identifier}".encode()
    return f"{what}-{hmac.digest(key, text, 'sha256').hex()[:16]}"
