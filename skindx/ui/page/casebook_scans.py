"""The scans in the case book's tab: views over time, one scan shown, two compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from skindx.casebook.kept_case import LIST, KeptScan
from skindx.casebook.scan_book import ScanBook
from skindx.core.errors import UserError
from skindx.scan.outputs.scan_pages import PAGE
from skindx.ui.html import data_url, sentence
from skindx.ui.page.casebook_error import casebook_error


@dataclass(frozen=True)
class ScannedView:
    """The scans of one view of a patient, oldest first."""

    patient: str
    view: str
    scans: tuple[KeptScan, ...]


def delete_scan(book: ScanBook, owner: str, scan: str) -> str:
    """Delete a scan and return what to say. Raises UserError."""
    book.delete(owner, scan)
    return "The scan, its photos and its lesions are deleted."


def scans_shown(book: ScanBook, owner: str, sent: Mapping[str, str]) -> dict[str, Any]:
    """Return what the template needs of scans: all views, and of the chosen one what is asked for.

    Raises UserError for a case book that cannot be read.
    """
    views = _views(book.scans(owner))
    asked = (sent.get("patient", ""), sent.get("view", ""))
    chosen = next((view for view in views if (view.patient, view.view) == asked), None)
    shown: dict[str, Any] = {
        "views": views,
        "chosen_view": chosen,
        "shown_scan": None,
        "listing": "",
        "page": "",
        "pair": ("", ""),
        "comparison": "",
        "scan_problem": "",
    }
    if chosen is None:
        return shown
    ids = [scan.id for scan in chosen.scans]
    wanted = sent.get("scan", "") if sent.get("action") == "show-scan" else ids[-1]
    current = next((scan for scan in chosen.scans if scan.id == wanted), chosen.scans[-1])
    files = book.files(owner, current.id, LIST, PAGE)
    before, after = sent.get("before", ""), sent.get("after", "")
    pair = (before if before in ids else ids[0], after if after in ids else ids[-1])
    shown |= {
        "shown_scan": current,
        "listing": files.get(LIST, b"").decode(),
        "page": data_url(files[PAGE], "text/html") if PAGE in files else "",
        "pair": pair,
    }
    if sent.get("action") == "compare-scans":
        try:
            shown["comparison"] = _comparison(book, owner, *pair)
        except UserError as error:
            shown["scan_problem"] = sentence(casebook_error(error))
    return shown


def _comparison(book: ScanBook, owner: str, first: str, second: str) -> str:
    from skindx.casebook.scan_book import compared
    from skindx.scan.compare.scan_comparison import render_comparison

    with compared(book, owner, first, second) as comparison:
        return render_comparison(comparison)


def _views(scans: list[KeptScan]) -> list[ScannedView]:
    """Return the views, the one scanned last first."""
    found: dict[tuple[str, str], list[KeptScan]] = {}
    for scan in scans:
        found.setdefault((scan.patient, scan.view), []).append(scan)
    views = [ScannedView(*name, tuple(own)) for name, own in found.items()]
    return sorted(views, key=lambda view: view.scans[-1].taken, reverse=True)
