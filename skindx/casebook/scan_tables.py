"""The case book's tables of scans; a book of an older version gets them when it is opened."""

from sqlalchemy import ForeignKey, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from skindx.casebook.tables import Base


class ScanRow(Base):
    """One scan, encrypted in two parts, since a list of many needs the first alone."""

    __tablename__ = "sealed_scans"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    owner: Mapped[str] = mapped_column(String(64), index=True)
    """Code of the login name, `sealing.owner_code`."""
    card: Mapped[bytes] = mapped_column(LargeBinary)
    """Owner, patient, view, time, consent, counts."""
    names: Mapped[bytes] = mapped_column(LargeBinary)
    """Names of the files, in their order."""


class ScanFileRow(Base):
    """One file of a scan, encrypted."""

    __tablename__ = "sealed_scan_files"

    scan_id: Mapped[str] = mapped_column(
        String(32), ForeignKey("sealed_scans.id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(primary_key=True)
    content: Mapped[bytes] = mapped_column(LargeBinary)
