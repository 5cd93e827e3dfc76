"""DICOM photos made with pydicom: each transfer syntax and kind of colours, of given pixels."""

import io
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import UID, ExplicitVRLittleEndian, generate_uid

PHOTOGRAPH = "1.2.840.10008.5.1.4.1.1.77.1.4"
DERMOSCOPY = "1.2.840.10008.5.1.4.1.1.77.1.7"


def pixels(height: int = 48, width: int = 64, *, seed: int = 0) -> NDArray[np.uint8]:
    """Return pixels_HWC of all colours, smooth and with edges."""
    noise = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), np.uint8)
    pixels_HWC = np.kron(noise, np.ones((8, 8, 1), np.uint8))
    pixels_HWC[..., 1] = np.linspace(0, 255, width, dtype=np.uint8)
    return pixels_HWC


def dicom(
    pixel_data: bytes,
    height: int,
    width: int,
    *,
    syntax: str = ExplicitVRLittleEndian,
    colours: str = "RGB",
    planar: int = 0,
    **elements: Any,
) -> bytes:
    """Return a file; `pixel_data` of a compressed syntax is one frame, not encapsulated yet.

    An element of the value None is left out.
    """
    dataset = Dataset()
    values = {
        "SOPClassUID": PHOTOGRAPH,
        "SOPInstanceUID": generate_uid(entropy_srcs=["instance"]),
        "StudyInstanceUID": generate_uid(entropy_srcs=["study"]),
        "SeriesInstanceUID": generate_uid(entropy_srcs=["series"]),
        "Modality": "XC",
        "PatientID": "4711",
        "PatientName": "Doe^Jane",
        "Rows": height,
        "Columns": width,
        "SamplesPerPixel": 3,
        "PhotometricInterpretation": colours,
        "PlanarConfiguration": planar,
        "BitsAllocated": 8,
        "BitsStored": 8,
        "HighBit": 7,
        "PixelRepresentation": 0,
        **elements,
    }
    for name, value in values.items():
        if value is not None:
            setattr(dataset, name, value)
    uid = UID(syntax)
    if "PixelData" not in elements:
        compressed = not uid.is_private and uid.is_compressed and not uid.is_deflated
        dataset.PixelData = encapsulate([pixel_data]) if compressed else pixel_data
        dataset["PixelData"].VR = "OB"
        dataset["PixelData"].is_undefined_length = compressed
    return written(dataset, uid)


def written(dataset: Dataset, uid: UID) -> bytes:
    """Return a dataset as a file of a transfer syntax, which may be one that nobody knows."""
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = uid
    dataset.file_meta.MediaStorageSOPClassUID = dataset.get("SOPClassUID", PHOTOGRAPH)
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.get("SOPInstanceUID", "1.2.3")
    file = io.BytesIO()
    if uid.is_private:
        dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.save_as(file, enforce_file_format=True)
    named = ExplicitVRLittleEndian.encode() + b"\0"
    private = uid.encode().ljust(len(named), b"\0")
    return file.getvalue().replace(named, private, 1) if uid.is_private else file.getvalue()


def deflated(elements: bytes) -> bytes:
    """Return bytes as the elements of a deflated file are stored."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(elements) + packer.flush()


def ybr(rgb_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return full-range YCbCr by the equations of DICOM PS3.3 C.7.6.3.1.2."""
    matrix = np.array([[0.299, 0.587, 0.114], [-0.1687, -0.3313, 0.5], [0.5, -0.4187, -0.0813]])
    exact_HWC = rgb_HWC.astype(float) @ matrix.T + [0, 128, 128]
    return np.clip(np.rint(exact_HWC), 0, 255).astype(np.uint8)


def rgb(ybr_HWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return RGB of full-range YCbCr, pixel by pixel in plain floating point."""
    y, b, r = (ybr_HWC[..., channel].astype(float) for channel in range(3))
    exact_HWC = np.stack(
        [
            y + 1.402 * (r - 128),
            y - 0.344136286 * (b - 128) - 0.714136286 * (r - 128),
            y + 1.772 * (b - 128),
        ],
        axis=-1,
    )
    return np.clip(np.floor(exact_HWC + 0.5), 0, 255).astype(np.uint8)
