"""A case's photos on their way to the networks: opened, and past the gates."""

from dataclasses import dataclass

from skindx.diagnosis.advice import ADVICE
from skindx.diagnosis.case import Case
from skindx.diagnosis.opening import MIN_SIDE, Opened, open_photo
from skindx.diagnosis.refusal import Refusal, Refused
from skindx.diagnosis.view import small_view
from skindx.imaging.gates import inspect

COARSE = 200
"""Pixels of the shorter side, below which fine structures are lost to most networks."""


@dataclass(frozen=True)
class CheckedPhoto:
    """A photo that passed its gates, and what is not good about it all the same."""

    opened: Opened
    remarks: tuple[str, ...]


def check_photos(
    case: Case, needed: int | None = None, least: int = MIN_SIDE
) -> tuple[dict[int, CheckedPhoto], list[Refusal]]:
    """Return a case's photos that pass, by their place in it, and why the others do not.

    Every photo is looked at, whatever is wrong with another. `needed` and `least` are as
    `open_photo` has them.
    """
    seen: dict[int, CheckedPhoto] = {}
    refusals: list[Refusal] = []
    for photo, data in enumerate(case.photos):
        try:
            seen[photo] = _check_photo(data, photo, needed, least)
        except Refused as refused:
            refusals.extend(refused.refusals)
    return seen, refusals


def _check_photo(data: bytes, photo: int, needed: int | None, least: int) -> CheckedPhoto:
    opened = open_photo(data, photo, needed=needed, least=least)
    remarks = []
    if min(opened.width, opened.height) < COARSE:
        size = f"{opened.width} x {opened.height} pixels"
        remarks.append(f"The photo is small ({size}): fine structures may be lost.")
    for gate, finding in inspect(opened.pixels_HWC):
        if finding.fatal:
            shown = small_view(data, opened.pixels_HWC)
            advice = ADVICE[finding.fault]
            raise Refused(gate, advice, photo, (Refusal(photo, gate, advice, shown),))
        remarks.append(ADVICE[finding.fault])
    return CheckedPhoto(opened, tuple(remarks))
