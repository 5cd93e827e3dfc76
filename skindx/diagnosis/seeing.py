"""A case's photos on their way to the networks: opened, and past the gates."""

from dataclasses import dataclass

from skindx.diagnosis.case import Case
from skindx.diagnosis.gates import inspect
from skindx.diagnosis.opening import Opened, open_photo
from skindx.diagnosis.refusal import Refused

COARSE = 200
"""Pixels of the shorter side, below which fine structures are lost to most networks."""


@dataclass(frozen=True)
class Seen:
    """A photo that passed its gates, and what is not good about it all the same."""

    opened: Opened
    remarks: tuple[str, ...]


def see(case: Case, needed: int | None) -> tuple[Seen, ...]:
    """Open a case's photos, `needed` as `open_photo` has it. Raises Refused, naming the photo."""
    try:
        return tuple(_see(data, photo, needed) for photo, data in enumerate(case.photos))
    except Refused as refused:
        raise refused.among(len(case.photos)) from None


def _see(data: bytes, photo: int, needed: int | None) -> Seen:
    opened = open_photo(data, photo, needed=needed)
    remarks = []
    if min(opened.width, opened.height) < COARSE:
        size = f"{opened.width} x {opened.height} pixels"
        remarks.append(f"The photo is small ({size}): fine structures may be lost.")
    for gate, finding in inspect(opened.pixels_HWC):
        if finding.fatal:
            raise Refused(gate, finding.message, photo)
        remarks.append(finding.message)
    return Seen(opened, tuple(remarks))
