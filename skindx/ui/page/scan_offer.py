"""The offer of a scan below the answer about a wide photo."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from skindx.casebook.case import CONSENT_TO_SCAN
from skindx.diagnosis.record import Diagnosis
from skindx.ui.html import render, sentence
from skindx.ui.scanning.errors import NoScans
from skindx.ui.scanning.settings import ScanServing

if TYPE_CHECKING:
    from skindx.ui.scanning.jobs import ScanJobs


@dataclass(frozen=True)
class PageScans:
    """What the page needs of the server's scans; `jobs` is None where it takes none."""

    settings: ScanServing
    jobs: "ScanJobs | None" = None
    unable: NoScans | None = None


def offer_html(diagnosis: Diagnosis, scans: PageScans, *, keeps: bool) -> str:
    """Return the offer; "" where no photo is a wide one. `keeps`: there is a case book."""
    counts = [
        scans.settings.wide.small_lesions(photo.width, photo.height, photo.boxes or ())
        for photo in diagnosis.photos
    ]
    wide = [number for number, count in enumerate(counts) if count]
    if not wide or (scans.jobs is None and scans.unable is None):
        return ""
    return render(
        "scan_offer.html.jinja",
        wide=wide,
        lesions=sum(counts),
        photos=len(counts),
        unable=sentence(str(scans.unable)) if scans.unable else "",
        minutes=round(scans.settings.keep_s / 60),
        keeps=keeps,
        consent=CONSENT_TO_SCAN,
    )
