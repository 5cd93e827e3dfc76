"""Every scan over a stranger's bytes takes time in proportion to them, whatever they are.

A regular expression holds the interpreter until it is done, so each call runs in a child process
that an alarm ends.
"""

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from skindx.data.publish.clean_images import clean_image, strip_jpeg
from skindx.imaging import dicom_pixels
from skindx.imaging.decode import decode, decode_small, orientation_of, upright_jpeg_size
from skindx.imaging.decode_cost import jpeg_passes
from skindx.imaging.image_formats import MOST_SEGMENTS, DamagedImage, photo_format, read_jpeg
from skindx.imaging.stored_colours import stored_colours

LIMIT_S = 5
UNITS = {
    "stuffed bytes": b"\xff\x00",
    "fill bytes": b"\xff",
    "restarts": b"\xff\xd0",
    "segments": b"\xff\xe1\x00\x02",
    "tables": b"\xff\xc4\x00\x02",
    "scans": b"\xff\xda\x00\x02",
    "ends": b"\xff\xd9",
    "zeros": b"\x00",
}


def unsound(_: bytes) -> None:
    raise ValueError("2 extraneous bytes before marker 0xd9")


SCANS: dict[str, Callable[[bytes], Any]] = {
    "passes": jpeg_passes,
    "repair": lambda data: read_jpeg(data, unsound),
    "decode": decode,
    "decode_small": lambda data: decode_small(data, 64),
    "size": upright_jpeg_size,
    "orientation": lambda data: orientation_of(data, "JPEG"),
    "format": photo_format,
    "colours": lambda data: stored_colours(data, "JPEG"),
    "strip": strip_jpeg,
    "clean": clean_image,
    "dicom baseline": dicom_pixels.is_baseline,
    "dicom notes": dicom_pixels.without_notes,
    "dicom colours": lambda data: dicom_pixels.with_colours(data, "YBR_FULL"),
}


def scan_all(size: int) -> None:
    """Run each function on each run of bytes, after a start and in a scan; name it first."""
    for kind, unit in UNITS.items():
        for start in (b"\xff\xd8", b"\xff\xd8\xff\xda\x00\x02"):
            data = start + unit * (size // len(unit))
            for name, scan in SCANS.items():
                print(f"{name} of {kind}", flush=True)
                signal.alarm(LIMIT_S)
                with suppress(ValueError):
                    scan(data)
    signal.alarm(0)


@pytest.mark.parametrize("kilobytes", [256, pytest.param(16 << 10, marks=pytest.mark.long)])
def test_no_run_of_bytes_keeps_a_scan_for_long(kilobytes: int) -> None:
    done = subprocess.run(
        [sys.executable, __file__, str(kilobytes << 10)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1]}: {done.returncode}{done.stderr}"


def test_a_jpeg_of_more_segments_than_cameras_write_is_refused() -> None:
    with pytest.raises(DamagedImage, match="segments") as refused:
        jpeg_passes(b"\xff\xd8" + b"\xff\xfe\x00\x02" * (MOST_SEGMENTS + 1))
    assert refused.value.reason == "decode-timeout"


if __name__ == "__main__":
    scan_all(int(sys.argv[1]))
