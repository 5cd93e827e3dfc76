"""Names sources that give thumbnails, so that one can look for larger versions."""

import re
from collections import defaultdict
from collections.abc import Iterable

from skindx.data.ledger import LedgerRow
from skindx.data.screening.screen import Screened

SMALL_PX = 200
"""An image whose longer side has no more pixels is a thumbnail, whatever its address says."""
DOUBTFUL_PX = 640
"""Up to this longer side an image is one if its address says so."""
_SHARE = 0.5
_NAMED = re.compile(
    r"[-_]\d{2,4}x\d{2,4}\.\w+$"  # WordPress: acne-300x225.jpg
    r"|/\d{2,4}px-[^/]*$"  # MediaWiki: 330px-Acne.jpg
    r"|thumb|[-_./](small|preview|icon)s?\b"
    r"|[?&](w|h|width|height|size|resize)=\d{1,3}(?!\d)",
    re.IGNORECASE,
)


def thumbnail_notes(images: Iterable[tuple[LedgerRow, Screened]]) -> list[str]:
    """Return a sentence for each web source of which at least half of the images are thumbnails."""
    by_source: dict[str, list[tuple[LedgerRow, Screened]]] = defaultdict(list)
    for row, screened in images:
        if screened.width and "://" in row.url:
            by_source[row.source].append((row, screened))
    notes = []
    for source, found in sorted(by_source.items()):
        small = [(row, screened) for row, screened in found if is_thumbnail(row.url, screened)]
        if len(small) >= _SHARE * len(found):
            row, screened = small[0]
            notes.append(
                f"{len(small)} of {len(found)} images of {source} seem to be thumbnails, such "
                f"as {row.url} ({screened.width} x {screened.height} pixels); look whether its "
                f"pages name larger versions, and set the selector `picture` to them."
            )
    return notes


def is_thumbnail(url: str, screened: Screened) -> bool:
    """Tell whether an image is a small copy, by its size or by what its address says."""
    longer = max(screened.width, screened.height)
    return longer <= SMALL_PX or (longer <= DOUBTFUL_PX and _NAMED.search(url) is not None)
