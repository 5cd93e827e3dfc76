"""A diagnosis and its photos, on their way from a worker to a page or client."""

from dataclasses import dataclass
from typing import Protocol

from skindx.diagnosis.case import Case
from skindx.diagnosis.record import Diagnosis


@dataclass(frozen=True)
class View:
    """One photo as it may be shown: upright, at most 1280 pixels, without any metadata."""

    jpeg: bytes
    heat: bytes = b""
    """PNG with transparency, to lie over the whole photo; empty where no heat map was made."""


@dataclass(frozen=True)
class Answer:
    """A diagnosis, the photos it is about, and the similar cases that may be shown."""

    diagnosis: Diagnosis
    views: tuple[View, ...]
    """One a photo, in the order of `diagnosis.photos`."""
    thumbnails: tuple[bytes, ...] = ()
    """JPEG, one for each of `diagnosis.similar`; empty where its licence does not allow showing."""


class Diagnoser(Protocol):
    """What answers cases: a pool of processes behind a server, or one predictor in a test."""

    async def diagnose(self, case: Case) -> Answer:
        """Answer a case. Raises Refused for a photo that cannot be judged, UserError otherwise."""
