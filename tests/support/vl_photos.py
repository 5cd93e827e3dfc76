"""Photographs and dermoscopy as a camera's software writes them into DICOM; no real person's."""

import numpy as np
from dicom_files import DERMOSCOPY, PHOTOGRAPH, dicom
from numpy.typing import NDArray
from paint_images import encode
from pydicom.dataset import Dataset
from pydicom.uid import ExplicitVRLittleEndian, JPEGBaseline8Bit, generate_uid

_DATES = ("StudyDate", "ContentDate", "AcquisitionDate")
_DERMOSCOPY = {
    "FrameOfReferenceUID": "2.25.1",
    "PositionReferenceIndicator": "",
    "LightSourcePolarization": "",
    "ContactMethod": "",
    "EmitterColorTemperature": "",
    "OpticalMagnificationFactor": "",
    "RecognizableVisualFeatures": "NO",
}


def code(value: str, meaning: str, scheme: str = "SCT") -> Dataset:
    """Return an item of a code sequence."""
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, scheme, meaning
    return item


def vl_photo(
    pixels_HWC: NDArray[np.uint8],
    *,
    patient: str,
    study: str,
    number: int = 1,
    jpeg: bool = True,
    dermoscopy: bool = False,
    **elements: object,
) -> bytes:
    """Return a file of VL Photographic or Dermoscopic Photography; UIDs follow from the ids."""
    compressed = {
        "LossyImageCompressionRatio": "10",
        "LossyImageCompressionMethod": "ISO_10918_1",
    }
    values: dict[str, object] = {
        "SOPClassUID": DERMOSCOPY if dermoscopy else PHOTOGRAPH,
        "SOPInstanceUID": generate_uid(entropy_srcs=["image", patient, study, str(number)]),
        "StudyInstanceUID": generate_uid(entropy_srcs=["study", patient, study]),
        "SeriesInstanceUID": generate_uid(entropy_srcs=["series", patient, study]),
        **dict.fromkeys(_DATES, "20260302"),
        **{name.replace("Date", "Time"): "101500" for name in _DATES},
        "AcquisitionDateTime": "20260302101500",
        "AccessionNumber": f"A-{study}",
        "StudyID": study[:16],
        "Modality": "DMS" if dermoscopy else "XC",
        **dict.fromkeys(("Manufacturer", "ManufacturerModelName", "SoftwareVersions"), "Camera"),
        "DeviceSerialNumber": "1",
        "ReferringPhysicianName": "Referrer^Rita",
        "PatientName": f"Secretname^{patient}",
        "PatientID": patient,
        "PatientBirthDate": "19640101",
        "PatientSex": "F",
        "PatientAge": "062Y",
        "SeriesNumber": "1",
        "InstanceNumber": str(number),
        "ImageType": ["ORIGINAL", "PRIMARY"],
        "PatientOrientation": ["L", "F"],
        "BurnedInAnnotation": "NO",
        "LossyImageCompression": "01" if jpeg else "00",
        **(compressed if jpeg else {}),
        "AcquisitionContextSequence": [],
        "AnatomicRegionSequence": [code("14975008", "Forearm")],
        "ImageLaterality": "L",
        **(_DERMOSCOPY if dermoscopy else {}),
        **elements,
    }
    return dicom(
        encode(pixels_HWC, quality=92) if jpeg else pixels_HWC.tobytes(),
        *pixels_HWC.shape[:2],
        syntax=JPEGBaseline8Bit if jpeg else ExplicitVRLittleEndian,
        colours="YBR_FULL_422" if jpeg else "RGB",
        **values,
    )
