"""A kept scan as a plain value."""

from dataclasses import dataclass
from datetime import datetime

FILES = ("scan.json", "lesions.parquet", "scan.html")
"""Of a scan's folder, beside its overviews and crops: what a comparison and a reader need."""
FOLDERS = ("overviews", "crops")
LIST = "list.html"
"""The part of the page that shows the first lesions; a scan of the command line has none."""


@dataclass(frozen=True, slots=True)
class KeptScan:
    """One scan of a case book; its files are decrypted when they are asked for."""

    id: str
    owner: str
    patient: str
    """A pseudonym."""
    view: str
    """Such as: back, standing. Scans of one view can be compared."""
    taken: datetime
    lesions: int
    photos: int
    consent: str
    consented: datetime
