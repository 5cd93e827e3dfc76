"""Results of a crawl for one source so far."""

from collections import Counter
from dataclasses import dataclass, field

from skindx.data.sources.source import Page, WebSource


@dataclass(slots=True)
class SourceVisit:
    """The pages and images of a source that a crawl knows."""

    source: WebSource
    pages: set[tuple[str, str]] = field(default_factory=set)
    """(url, label): a page that two labels lead to is read for both."""
    read: list[Page] = field(default_factory=list)
    """Those pages that could be read, in their order."""
    showing: set[str] = field(default_factory=set)
    """Labels of those that name an image."""
    images: set[tuple[str, str]] = field(default_factory=set)
    """(url, label)."""
    counts: Counter[str] = field(default_factory=Counter)
    """Images of each label."""
    cut: set[str] = field(default_factory=set)
    """Labels with more pages than are read."""
    failures: list[str] = field(default_factory=list)

    def empty_pages(self) -> list[Page]:
        """Return the first page of each label whose pages were read and show no image."""
        first = {page.label: page for page in reversed(self.read) if page.label}
        return [page for label, page in first.items() if label not in self.showing]

    def full(self, label: str) -> bool:
        """Tell whether the source may give no more of a label."""
        most = self.source.max_pictures
        return most is not None and self.counts[label] >= most
