"""All images of a dataset by class, split and source, with counts and a search.

Beside the images that the build kept stand those that it left out and whose bytes are stored.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skindx.core.text import printable
from skindx.data.ledger import file_name
from skindx.data.manifest import SPLITS
from skindx.review.dataset_review import REASONS, DatasetReview, ReviewItem

PAGE = 60
"""Images a page."""
OUT = "left out"
_LONGEST_NAME = 80
_FEWEST_DIGITS = 8
"""Fewest hexadecimal digits of a search by hash: fewer digits match many images."""


class DatasetBrowser:
    """Finds images of a review; every method may be called from any thread."""

    def __init__(self, review: DatasetReview) -> None:
        self._review = review
        self._lock = threading.Lock()
        self._index: _BrowseIndex | None = None

    def find(
        self,
        *,
        label: int | None = None,
        split: int | None = None,
        source: int | None = None,
        text: str = "",
        page: int = 0,
    ) -> dict[str, Any]:
        """Return a page of the images that fit, and how many fit each other choice.

        `label`, `split` and `source` are places in the lists that each answer holds; None: all.
        `text`: words that all stand in the names of the class, file, group or source, or begin the
        SHA-256 with eight digits or more. A page beyond the last is the last.
        """
        with self._lock:  # at first 100,000 images take a second
            self._index = self._index or _BrowseIndex(self._review)
            index = self._index
        with_text_N = index.with_text(text)
        of_N = {
            name: np.ones(len(index.rows), np.bool_) if at is None else index.codes_N[name] == at
            for name, at in (("label", label), ("split", split), ("source", source))
        }
        fit_N = with_text_N & of_N["label"] & of_N["split"] & of_N["source"]
        places = np.flatnonzero(fit_N)
        pages = max(1, -(-len(places) // PAGE))
        page = min(page, pages - 1)
        answer: dict[str, Any] = {
            "name": printable(self._review.dataset.resolve().name),
            "all": len(index.rows),
            "images": len(places),
            "groups": len(np.unique(index.group_N[places])),
            "page": page,
            "pages": pages,
            "size": PAGE,
            "rows": [index.shown(int(at)) for at in places[page * PAGE : (page + 1) * PAGE]],
        }
        for name, names in index.names.items():
            rest_N = with_text_N.copy()
            for other, fits_N in of_N.items():
                rest_N &= fits_N if other != name else True
            counts = np.bincount(index.codes_N[name][rest_N], minlength=len(names))
            answer[name] = list(zip(names, counts.tolist(), strict=True))
        return answer


class _BrowseIndex:
    """The single images of a review in the order of a browser: by class, split, group and name."""

    def __init__(self, review: DatasetReview) -> None:
        rows = []
        for at, item in enumerate(review.items):
            if len(item.key) == 1:
                (sha256,) = item.key
                record, issue = review.records.get(sha256), review.left_out.get(sha256)
                url = record.source_url if record else issue.url if issue else ""
                group = record.group if record else sha256
                rows.append((item.label, record.split if record else OUT, group, url, at, item))
        order = {split: place for place, split in enumerate((*SPLITS, OUT))}
        rows.sort(key=lambda row: (row[0], order[row[1]], *row[2:5]))
        self.rows: Sequence[tuple[str, str, str, str, int, ReviewItem]] = rows
        self._names = review.names
        labels = sorted({row[0] for row in rows}, key=lambda key: (self._name(key).lower(), key))
        sources = sorted({row[5].source for row in rows})
        self.names = {
            "label": [self._name(label) for label in labels],
            "split": list(order),
            "source": [printable(source)[:200] or "not named" for source in sources],
        }
        self.codes_N = {
            "label": _codes([row[0] for row in rows], labels),
            "split": _codes([row[1] for row in rows], list(order)),
            "source": _codes([row[5].source for row in rows], sources),
        }
        groups = {group: code for code, group in enumerate(dict.fromkeys(row[2] for row in rows))}
        self.group_N = np.array([groups[row[2]] for row in rows], np.int64)
        self._texts = [
            "\n".join((row[0], self._name(row[0]), *row[2:4], row[5].source)).casefold()
            for row in rows
        ]

    def _name(self, label: str) -> str:
        return printable(self._names.get(label, label.replace("_", " ")))[:200] or "no label"

    def with_text(self, text: str) -> NDArray[np.bool_]:
        """Tell of each image whether all words stand in what names it."""
        fits_N = np.ones(len(self.rows), np.bool_)
        for word in text.casefold().split():
            has_N = np.array([word in names for names in self._texts], np.bool_)
            if len(word) >= _FEWEST_DIGITS:
                hashes = (row[5].key[0] for row in self.rows)
                has_N |= np.array([sha256.startswith(word) for sha256 in hashes], np.bool_)
            fits_N &= has_N
        return fits_N

    def shown(self, place: int) -> dict[str, Any]:
        """Return one image as the page shows it."""
        label, split, group, url, at, item = self.rows[place]
        flags = [reason for reason in item.reasons if reason not in ("box", "left-out")]
        return {
            "at": at,
            "label": self._name(label),
            "split": split,
            "file": printable(file_name(url) or url)[-_LONGEST_NAME:],
            "group": "" if group == item.key[0] else printable(group)[:_LONGEST_NAME],
            "flags": [REASONS[reason] for reason in flags],
        }


def _codes(values: Sequence[str], names: Sequence[str]) -> NDArray[np.int64]:
    places = {name: place for place, name in enumerate(names)}
    return np.array([places[value] for value in values], np.int64)
