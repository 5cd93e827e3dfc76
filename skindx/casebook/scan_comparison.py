"""Two kept scans of one view, compared: their files are in plain text only meanwhile."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from skindx.casebook.consent import purposes_of
from skindx.casebook.overwriting import overwrite
from skindx.casebook.scan import KeptScan
from skindx.casebook.scanbook import ScanBook
from skindx.core.atomic_files import memory_folder, private_folder
from skindx.core.errors import UserError
from skindx.scan.compare.comparison import ScanComparison, compare

_ROOM_BYTES = 512 << 20


@contextmanager
def compared(
    book: ScanBook, owner: str | None, first: str, second: str
) -> Iterator[ScanComparison]:
    """Compare two scans of a patient's view, the older one before; the block may read its files.

    Raises UserError for the same scan twice, scans of different patients or views, and photos that
    cannot be laid on each other.
    """
    scans = sorted((book.scan(owner, scan) for scan in {first, second}), key=lambda x: x.taken)
    _check(scans)
    with _private_folder() as folder:
        for number, scan in enumerate(scans):
            _write(folder / str(number), book.files(scan.owner, scan.id))
        try:
            yield compare(folder / "0", folder / "1")
        except UserError as error:
            said = str(error)
            for number, scan in enumerate(scans):
                said = said.replace(str(folder / str(number)), f"the scan of {scan.taken:%d %b %Y}")
            raise UserError(said) from None


def _check(scans: list[KeptScan]) -> None:
    if len(scans) < 2:
        raise UserError("that is the same scan twice; choose two.")
    if len({(scan.owner, scan.patient, scan.view) for scan in scans}) > 1:
        raise UserError(
            "these scans are of different patients or views; choose two of the same view."
        )
    without = [scan for scan in scans if "compare" not in purposes_of(scan.consent)]
    if without:
        raise UserError(
            f"the scan of {without[0].taken:%d %b %Y} was kept without consent to compare it; ask "
            "the patient, and keep a later scan with that consent."
        )


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = (folder / name).resolve()
        if not path.is_relative_to(folder):
            raise UserError("a kept scan names a file outside of it; the case book is damaged.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@contextmanager
def _private_folder() -> Iterator[Path]:
    """Yield a folder of this user alone, in memory where there is room; its bytes are zeroed."""
    with private_folder("skindx-compare-", memory_folder(_ROOM_BYTES)) as folder:
        try:
            yield folder
        finally:
            for path in folder.rglob("*"):
                if path.is_file():
                    overwrite(path)
