"""How fast one core makes images of DICOM photos, by transfer syntax, and in how much memory."""

import io
import json
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from skindx.core.machine import require_extra, spawn_context
from skindx.core.settings_base import Settings
from skindx_bench.harness.result import Figure, Result, median

SMALLEST = ("files=7", "width=64", "height=48", "rounds=2")
_SYNTAXES = {
    "jpeg": "1.2.840.10008.1.2.4.50",
    "jpeg_2000": "1.2.840.10008.1.2.4.90",
    "rle": "1.2.840.10008.1.2.5",
    "deflated": "1.2.840.10008.1.2.1.99",
    "explicit": "1.2.840.10008.1.2.1",
}
_QUALITY = 90
_GRAIN = 2.0
"""Standard deviation, in levels: what is no noise at all compresses better than any photo."""


class Config(Settings):
    """`files` photos in equal shares of each transfer syntax, imported in each of `rounds`."""

    files: int = Field(1000, ge=5)
    width: int = Field(1024, ge=16)
    height: int = Field(768, ge=16)
    rounds: int = Field(3, ge=2)
    seed: int = 0


def run(settings: Config) -> Result:
    """Import all photos in turns of the syntaxes, each time in a new process of one thread."""
    require_extra("clinic", "pydicom", "gdcm", "openjpeg", "rle", purpose="this benchmark")
    with TemporaryDirectory() as name:
        folder = Path(name)
        paths = {kind: _write(folder, kind, settings) for kind in _SYNTAXES}
        seconds: dict[str, list[float]] = {kind: [] for kind in _SYNTAXES}
        peaks_mb = []
        for _ in range(settings.rounds):
            out = folder / "out"
            out.mkdir(exist_ok=True)
            ours, theirs = (context := spawn_context()).Pipe(duplex=False)
            process = context.Process(target=_import_all, args=(paths, out, theirs))
            process.start()
            theirs.close()
            took, peak_mb = json.loads(ours.recv_bytes())
            process.join()
            peaks_mb.append(peak_mb)
            for kind, one in took.items():
                seconds[kind].append(one)
    counts = {kind: len(files) for kind, files in paths.items()}
    total = [sum(round_s) for round_s in zip(*seconds.values(), strict=True)]
    figures: dict[str, Figure] = {
        "files_per_core": median([sum(counts.values()) / s for s in total], "files/s"),
        "peak_memory": median(peaks_mb, "MB"),
        **{
            f"{kind}_per_core": median([counts[kind] / s for s in seconds[kind]], "files/s")
            for kind in _SYNTAXES
        },
    }
    notes = (
        f"{sum(counts.values())} photos of {settings.width} x {settings.height} pixels, in equal "
        f"shares of {', '.join(_SYNTAXES)}; grain of {_GRAIN:g} levels. Timed by the CPU seconds "
        "of a process with one thread: header, facts, pixels, and a JPEG or PNG without metadata "
        "written. peak_memory is the resident memory of that process, its libraries included.",
    )
    return Result("dicom-import", figures, notes=notes)


def _import_all(paths: dict[str, list[Path]], out: Path, answers: Connection) -> None:
    took = {kind: _import(files, out) for kind, files in paths.items()}
    answers.send_bytes(json.dumps([took, _peak_mb()]).encode())


def _import(paths: Sequence[Path], out: Path) -> float:
    """Import files as a sandboxed process does; return its CPU seconds."""
    import cv2

    from skindx.imaging.dicom import dicom_reading
    from skindx.workers.sandbox import prepare

    prepare(dicom_reading)
    cv2.setNumThreads(1)
    job: dict[str, Any] = {"out": str(out), "kind": "image", "max_pixels": 50_000_000}
    start = time.process_time()
    answers = next(filter(None, dicom_reading(job)(paths)))
    elapsed = time.process_time() - start
    assert all(answer.get("file") for answer in answers), answers
    return elapsed


def _peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000


def _write(folder: Path, kind: str, settings: Config) -> list[Path]:
    """Write a share of the photos in one transfer syntax; each is another one."""
    import cv2

    rng = np.random.default_rng(settings.seed)
    size_wh = (settings.width, settings.height)
    paths = []
    for number in range(-(-settings.files // len(_SYNTAXES))):
        coarse = rng.uniform(60, 220, (6, 8, 3)).astype(np.float32)
        smooth = cv2.resize(coarse, size_wh, interpolation=cv2.INTER_CUBIC)
        grainy = smooth + rng.normal(0, _GRAIN, (*size_wh[::-1], 1)).astype(np.float32)
        paths.append(folder / f"{kind}-{number}.dcm")
        paths[-1].write_bytes(_dicom(np.clip(grainy, 0, 255).astype(np.uint8), kind))
    return paths


def _dicom(pixels_HWC: NDArray[np.uint8], kind: str) -> bytes:
    import simplejpeg
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.encaps import encapsulate
    from pydicom.uid import UID, ExplicitVRLittleEndian

    dataset = Dataset()
    dataset.SOPClassUID = "1.2.840.10008.5.1.4.1.1.77.1.4"
    dataset.SOPInstanceUID = dataset.StudyInstanceUID = dataset.SeriesInstanceUID = "1.2.3"
    dataset.Modality, dataset.PatientID, dataset.PatientAge = "XC", "1", "045Y"
    dataset.Rows, dataset.Columns, dataset.SamplesPerPixel = pixels_HWC.shape
    dataset.BitsAllocated = dataset.BitsStored = 8
    dataset.HighBit, dataset.PixelRepresentation, dataset.PlanarConfiguration = 7, 0, 0
    dataset.PhotometricInterpretation = "YBR_FULL_422" if kind == "jpeg" else "RGB"
    syntax = UID(_SYNTAXES[kind])
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = (
        syntax if kind in ("jpeg", "deflated") else (ExplicitVRLittleEndian)
    )
    if kind == "jpeg":
        dataset.PixelData = encapsulate([simplejpeg.encode_jpeg(pixels_HWC, _QUALITY)])
    else:
        dataset.PixelData = pixels_HWC.tobytes()
    dataset["PixelData"].VR = "OB"
    if kind in ("jpeg_2000", "rle"):
        dataset.compress(syntax, encoding_plugin="pylibjpeg", generate_instance_uid=False)
    file = io.BytesIO()
    dataset.save_as(file, enforce_file_format=True)
    return file.getvalue()
