"""State of a crawl: images that are known, requested, answered, and stored before."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from skindx.data.blocklist import TAKEN_DOWN, BlockList, withheld
from skindx.data.crawl.fetch_outcome import PASSING, FetchOutcome
from skindx.data.labels import unmapped_label
from skindx.data.ledger import LedgerRow, LedgerWriter, now
from skindx.taxonomy import Taxonomy

_DECIDED = ("status", "detail", "sha256", "path", "size_bytes", "retrieved")

_ANOTHER = "Its owner forbids another address of the same image."
_ANOTHER_UNREAD = "Whether its owner permits another address of the same image is not known today."


class CrawlState:
    """One row a (url, label), one fetch a URL, over all runs that were ever started.

    A URL under two checksums counts as two: what is right for one of them is wrong for the other.

    `earlier` are the rows that the ledger holds when the crawl starts. URLs that are `blocked` or
    that have no class in `taxonomy` are not fetched; the row of a blocked one has no name.
    """

    def __init__(
        self,
        ledger: LedgerWriter,
        earlier: Sequence[LedgerRow],
        dataset: Path,
        *,
        blocked: BlockList | None = None,
        taxonomy: Taxonomy | None = None,
    ) -> None:
        self._taxonomy = taxonomy
        self._blocked = blocked or BlockList()
        self._ledger = ledger
        self._earlier = {(row.url, row.label): row for row in earlier}
        final = [row for row in earlier if _is_final(row, dataset)]
        self._answers = {_address(row): _decided(row) for row in final}
        self._waiting: dict[tuple[str, str], list[LedgerRow]] = {}
        self._known: set[tuple[str, str]] = set()
        self._written: dict[tuple[str, str], str] = {}
        self._had = 0
        self._forbidden: dict[str, FetchOutcome] = {}
        """By URL: the refusal of another address of the same image."""
        self._unread: set[str] = set()
        """URLs of hosts whose rules could not be read."""
        self._stored: dict[str, list[LedgerRow]] = {}
        for row in earlier:
            if row.status == "stored":
                self._stored.setdefault(row.url, []).append(row)
            elif row.detail == _ANOTHER:
                # A page that shows it alone may be read before the one that says whose it is.
                self._forbidden[row.url] = FetchOutcome(row.status, _ANOTHER)

    def wants(self, row: LedgerRow) -> bool:
        """Enter an image that a page shows; tell whether its URL must be fetched now.

        A row that has a status already is written as it is.
        """
        key = (row.url, row.label)
        if key in self._known:
            return False
        self._known.add(key)
        entry = self._blocked.find("", row.url)
        if entry:
            row = withheld(row, entry)
        if not row.status and row.url in self._forbidden:
            row = replace(row, **_decided(self._forbidden[row.url]))
        if row.status:
            self._write(replace(row, retrieved=now()), force=False)
        elif _address(row) in self._answers:
            self._write(replace(row, **self._answers[_address(row)]), force=False)
        elif self._taxonomy and not self._taxonomy.recognise(row.label):
            status, detail = unmapped_label(row.label, self._taxonomy)
            self._write(replace(row, status=status, detail=detail, retrieved=now()), force=False)
        else:
            waiting = self._waiting.setdefault(_address(row), [])
            waiting.append(row)
            return len(waiting) == 1
        return False

    def status(self, row: LedgerRow) -> str:
        """Return the status of an image that was entered, "" while its answer is awaited."""
        return self._written.get((row.url, row.label), "")

    def answer(self, fetched: LedgerRow, outcome: FetchOutcome) -> None:
        """Write what became of a row's URL, for every label under which it was found."""
        address = _address(fetched)
        if outcome.unread:
            self._unread.add(fetched.url)
        outcome = self._forbidden.get(fetched.url, outcome)
        self._answers[address] = {**_decided(outcome), "retrieved": now()}
        for row in self._waiting.pop(address):
            self._write(replace(row, **self._answers[address]))

    def forbid(self, refused: LedgerRow, addresses: Sequence[LedgerRow]) -> None:
        """Apply an owner's refusal of one address of an image to its other `addresses`.

        They are not fetched, whichever page shows them, and what was stored of them before is
        withdrawn. Unreadable rules withdraw nothing: they may permit it tomorrow.
        """
        status = self.status(refused)
        kind = "opt-out" if status == TAKEN_DOWN else status
        unread = refused.url in self._unread
        no = FetchOutcome(kind, _ANOTHER_UNREAD if unread else _ANOTHER)
        for url in (row.url for row in addresses if row.url != refused.url):
            self._forbidden.setdefault(url, no)
            for row in () if unread else self._stored.pop(url, ()):
                self._write(replace(row, **_decided(no), retrieved=now()))

    def page_failed(self, url: str, label: str, source: str, problem: FetchOutcome) -> None:
        """Note a page whose images stay unknown.

        It gets no row of its own: pages are read by every run, and only the last one counts.
        """
        detail = f"A page could not be read, so its images are missing. {problem.detail}"
        row = LedgerRow(
            url, label, problem.status, detail, retrieved=now(), source=source, page_url=url
        )
        self._ledger.note("page", row=asdict(row))

    def source_failed(self, source: str, sentence: str) -> None:
        """Note that a source as a whole gave nothing."""
        self._ledger.note("failed", source=source, detail=sentence)

    def report(self) -> None:
        """Note how many images are known, and how many of them earlier runs had done."""
        self._ledger.note("progress", known=len(self._known), had=self._had)

    def close(self) -> None:
        """Note the end of a whole crawl; without this note the run counts as broken."""
        if self._waiting:
            raise RuntimeError(f"{len(self._waiting)} images never had an answer")
        self.report()
        self._ledger.note("finished")

    def _write(self, row: LedgerRow, *, force: bool = True) -> None:
        """Write a row; without `force` what no request told: the next run would know it too."""
        self._written[row.url, row.label] = row.status
        if row.status == "stored":
            self._stored.setdefault(row.url, []).append(row)
        before = self._earlier.get((row.url, row.label))
        # Of two pages that show one image either may come first; the time is always another.
        if before and replace(before, retrieved=row.retrieved, page_url=row.page_url) == row:
            self._had += 1
        else:
            self._ledger.append(row, force=force)


def _address(row: LedgerRow) -> tuple[str, str]:
    return row.url, row.md5


def _decided(answer: FetchOutcome | LedgerRow) -> dict[str, Any]:
    return {name: value for name, value in asdict(answer).items() if name in _DECIDED}


def _is_final(row: LedgerRow, dataset: Path) -> bool:
    if row.status == "stored":
        # The store may have been emptied since; the ledger alone is no image.
        file = dataset / row.path
        return file.is_file() and file.stat().st_size == row.size_bytes
    return row.status not in PASSING
