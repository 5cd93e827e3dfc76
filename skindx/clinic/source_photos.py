"""The photos that a report is about: DICOM as they came, others wrapped as VL Photographic Images.

Patient and study of a wrapped photo are those that a person names; nothing about them is guessed,
so most of its header is empty.
"""

import hashlib
import io
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skindx.clinic.narrative import SNOMED, sites
from skindx.core.errors import UserError
from skindx.core.text import printable
from skindx.diagnosis.case import Patient
from skindx.imaging.decode import decode, decode_stored_jpeg
from skindx.imaging.dicom import is_dicom, read_facts
from skindx.imaging.dicom_facts import DicomFacts, DicomIdentity
from skindx.imaging.dicom_pixels import EXPLICIT, colours_of, is_baseline, without_notes
from skindx.imaging.image_formats import HEAD, DamagedImage, photo_format
from skindx.imaging.sandboxed_images import decode_heic

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

_PHOTOGRAPH = "1.2.840.10008.5.1.4.1.1.77.1.4"
_JPEG_BASELINE = "1.2.840.10008.1.2.4.50"
_LOSSY = {"JPEG": "ISO_10918_1", "HEIC": "ISO_23008_2", "WEBP": ""}
"""Formats that lose pixels, and the standard of each as DICOM names it."""
_SEXES = {"female": "F", "male": "M", "other": "O"}
_UID = re.compile(r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))+")
_DATE = re.compile(r"[0-9]{8}")
_TIME = re.compile(r"[0-9]{2}([0-9]{2}([0-9]{2}(\.[0-9]{1,6})?)?)?")
_ID_LENGTH = 64


@dataclass(frozen=True)
class Named:
    """Patient and study as the user named them; "" where not."""

    patient_id: str = ""
    study_uid: str = ""

    def __post_init__(self) -> None:
        """Raise UserError for what DICOM cannot hold."""
        text = self.patient_id
        if len(text) > _ID_LENGTH or "\\" in text or text != printable(text):
            raise UserError(
                f"the patient ID {printable(text)[:20]!r}… cannot be stored in DICOM; give at "
                f"most {_ID_LENGTH} printable characters without a backslash."
            )
        if self.study_uid and not is_uid(self.study_uid):
            raise UserError(
                f"{printable(self.study_uid)[:70]!r} is not a study UID; give at most 64 digits "
                "and dots, such as 1.2.826.0.1.3680043.1."
            )


def is_uid(text: str) -> bool:
    """Tell whether a text is a unique identifier (DICOM PS3.5, 9.1)."""
    return len(text) <= _ID_LENGTH and _UID.fullmatch(text) is not None


def uid_of(*facts: str) -> str:
    """Return the identifier that belongs to some facts, the same each time (PS3.5, B.2)."""
    return f"2.25.{uuid.uuid5(uuid.NAMESPACE_OID, ' '.join(facts)).int}"


def read_headers(photos: Sequence[bytes], named: Named) -> list[DicomFacts | None]:
    """Return the facts of each photo that is a DICOM file, None of the others.

    Raises UserError for a file of another patient than the named one.
    """
    headers: list[DicomFacts | None] = []
    for number, photo in enumerate(photos, 1):
        try:
            facts = read_facts(photo) if is_dicom(photo[:HEAD]) else None
        except DamagedImage as error:
            raise UserError(
                f"photo {number} is a DICOM file that cannot be read: {error}."
            ) from None
        if facts and named.patient_id not in ("", facts.identity.patient_id):
            raise UserError(
                f"photo {number} belongs to another patient than --patient-id; remove "
                "--patient-id, or give only photos of that patient."
            )
        headers.append(facts)
    return headers


def check_identity(headers: Sequence[DicomFacts | None], named: Named) -> None:
    """Raise UserError where a report in DICOM could name no patient, study or photo."""
    for number, facts in enumerate(headers, 1):
        if facts is None:
            if not named.patient_id:
                raise UserError(
                    f"photo {number} is not a DICOM file, so its patient is unknown to "
                    "--dicom-sr; give --patient-id, and --study-uid if the photo belongs to an "
                    "existing study."
                )
            continue
        identity = facts.identity
        for name, uid in (
            ("study", identity.study_uid),
            ("series", identity.series_uid),
            ("SOP instance", identity.instance_uid),
        ):
            if not is_uid(uid):
                raise UserError(
                    f"photo {number} has no {name} UID, so a report cannot refer to it; export "
                    "the photo again from its archive."
                )


def identity_of(
    named: Named, photos: Sequence[bytes], headers: Sequence[DicomFacts | None]
) -> DicomIdentity:
    """Return patient and study of the photos that are to be wrapped.

    They are those of the first DICOM photo, except for what is named; without both it is a new
    study.
    """
    first = next((facts.identity for facts in headers if facts), DicomIdentity())
    hashes = [hashlib.sha256(photo).hexdigest() for photo in photos]
    study = named.study_uid or first.study_uid or uid_of("study", named.patient_id, *hashes)
    if study == first.study_uid:
        return first
    return DicomIdentity(
        patient_id=first.patient_id or named.patient_id,
        patient_name=first.patient_name,
        birth_date=first.birth_date,
        sex=first.sex,
        study_uid=study,
    )


def wrap_photo(
    data: bytes, number: int, whose: DicomIdentity, patient: Patient
) -> tuple[bytes, DicomFacts]:
    """Return a photo as a file of a VL Photographic Image, and what that file says.

    A baseline JPEG that stands upright stays as it is compressed, without its notes; every other
    photo is stored uncompressed. The pixels are in both cases those that skindx reads. `number` is
    its place in the case, from 1; the same photo and facts give the same file. Raises DamagedImage
    for what is no photo.
    """
    from pydicom.encaps import encapsulate

    form = photo_format(data[:HEAD])
    pixels_HWC = decode_heic(data)[0] if form == "HEIC" else decode(data)
    height, width = pixels_HWC.shape[:2]
    dataset, identity = _header(data, number, whose, patient)
    stream = without_notes(data) if form == "JPEG" and is_baseline(data) else b""
    if stream and np.array_equal(decode_stored_jpeg(stream), pixels_HWC):
        syntax, colours = _JPEG_BASELINE, _colours(stream)
        dataset.PixelData = encapsulate([stream])
    else:
        syntax, colours = EXPLICIT, "RGB"
        pixels = pixels_HWC.tobytes()
        dataset.PixelData = pixels + b"\0" * (len(pixels) % 2)
    dataset["PixelData"].VR = "OB"
    dataset.Rows, dataset.Columns = height, width
    dataset.SamplesPerPixel, dataset.PlanarConfiguration = 3, 0
    dataset.PhotometricInterpretation = colours
    dataset.BitsAllocated = dataset.BitsStored = 8
    dataset.HighBit, dataset.PixelRepresentation = 7, 0
    dataset.LossyImageCompression = "01" if form in _LOSSY else "00"
    if method := _LOSSY.get(form or ""):
        dataset.LossyImageCompressionMethod = method
        dataset.LossyImageCompressionRatio = f"{max(pixels_HWC.nbytes / len(data), 0.1):.3f}"
    facts = DicomFacts("photograph", "XC", width, height, identity=identity)
    return dicom_file(dataset, syntax), facts


def dicom_file(dataset: "Dataset", syntax: str) -> bytes:
    """Return a dataset as a DICOM file of a transfer syntax."""
    from pydicom.dataset import FileMetaDataset
    from pydicom.uid import UID

    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = UID(syntax)
    file = io.BytesIO()
    dataset.save_as(file, enforce_file_format=True)
    return file.getvalue()


def _colours(stream: bytes) -> str:
    """Return the photometric interpretation of a baseline JPEG (PS3.5, 8.2.1)."""
    named, ids, subsampled = colours_of(stream)
    if named == "RGB" or (not named and ids == b"RGB"):
        return "RGB"
    return "YBR_FULL_422" if subsampled else "YBR_FULL"


def _header(
    data: bytes, number: int, whose: DicomIdentity, patient: Patient
) -> "tuple[Dataset, DicomIdentity]":
    """Return the header of a wrapped photo, all but its pixels, and whom it names."""
    from pydicom.dataset import Dataset

    study = (whose.patient_id, whose.study_uid)
    photo = (patient.model_dump_json(), hashlib.sha256(data).hexdigest(), str(number))
    identity = replace(
        whose,
        sex=whose.sex or _SEXES.get(patient.sex or "", ""),
        series_uid=uid_of("series", *study),
        instance_uid=uid_of("instance", *study, *photo),
        class_uid=_PHOTOGRAPH,
    )
    dataset = Dataset()
    dataset.SpecificCharacterSet = "ISO_IR 192"
    dataset.ImageType = ["ORIGINAL", "PRIMARY"]
    dataset.Modality = "XC"
    dataset.SeriesNumber, dataset.InstanceNumber = 1, number
    dataset.Manufacturer = dataset.PatientOrientation = ""
    dataset.Laterality = {"left": "L", "right": "R"}.get(patient.laterality or "", "")
    dataset.AcquisitionContextSequence = []
    if patient.age is not None:
        dataset.PatientAge = f"{patient.age:03d}Y"
    if concept := sites().get(patient.site) if patient.site else None:
        region = Dataset()
        region.CodeValue, region.CodingSchemeDesignator = concept.code, SNOMED
        region.CodeMeaning = concept.meaning
        dataset.AnatomicRegionSequence = [region]
    set_identity(dataset, identity)
    return dataset, identity


def set_identity(dataset: "Dataset", identity: DicomIdentity) -> None:
    """Write whom and which study a dataset belongs to; what is not known stays empty."""
    values: dict[str, Any] = {
        "PatientID": identity.patient_id,
        "PatientName": identity.patient_name,
        "PatientBirthDate": _matching(_DATE, identity.birth_date),
        "PatientSex": identity.sex if identity.sex in _SEXES.values() else "",
        "StudyInstanceUID": identity.study_uid,
        "SeriesInstanceUID": identity.series_uid,
        "SOPInstanceUID": identity.instance_uid,
        "SOPClassUID": identity.class_uid,
        "StudyID": identity.study_id[:16],
        "StudyDate": _matching(_DATE, identity.study_date),
        "StudyTime": _matching(_TIME, identity.study_time),
        "AccessionNumber": identity.accession_number[:16],
        "ReferringPhysicianName": identity.referring_physician,
    }
    for keyword, value in values.items():
        setattr(dataset, keyword, value)


def _matching(pattern: re.Pattern[str], text: str) -> str:
    return text if pattern.fullmatch(text) else ""
