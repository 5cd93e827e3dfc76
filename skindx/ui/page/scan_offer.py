"""The offer of a scan below the answer about a wide photo."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from skindx.casebook.kept_case import SCAN_CONSENTS
from skindx.diagnosis.photo_checks import Refusal
from skindx.diagnosis.record import Photo
from skindx.ui.html import render, sentence
from skindx.ui.scanning.errors import NoScans
from skindx.ui.scanning.settings import ScanServing

if TYPE_CHECKING:
    from skindx.ui.scanning.jobs import ScanJobs


_HINT = "If it shows many spots from afar, scan it: see “Scan the whole photo”."


@dataclass(frozen=True)
class PageScans:
    """What the page needs of the server's scans; `jobs` is None where it takes none."""

    settings: ScanServing
    jobs: "ScanJobs | None" = None
    unable: NoScans | None = None


def with_hint(refusals: Sequence[Refusal], offered: str) -> list[Refusal]:
    """Return refusals that name the offer, which stands further down in a narrow window."""
    return [
        replace(refusal, message=f"{refusal.message} {_HINT}")
        if offered and refusal.seen
        else refusal
        for refusal in refusals
    ]


def offer_html(
    photos: Mapping[int, Photo], scans: PageScans, *, keeps: bool, answered: bool = True
) -> str:
    """Return the offer for a case's photos; "" where none is a wide one.

    `keeps`: there is a case book; `answered`: the case has an answer above the offer.
    """
    counts = scans.settings.wide.wide(photos)
    wide = list(counts)
    if not wide or (scans.jobs is None and scans.unable is None):
        return ""
    return render(
        "scan_offer.html.jinja",
        wide=wide,
        lesions=sum(counts.values()),
        alone=len(wide) == 1 and wide[0] == 0 and len(photos) == 1,
        answered=answered,
        unable=sentence(str(scans.unable)) if scans.unable else "",
        minutes=round(scans.settings.keep_s / 60),
        keeps=keeps,
        consents=SCAN_CONSENTS,
    )
