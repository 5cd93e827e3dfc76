"""The case book's tables: nothing in them names a patient or shows a photo without the key file."""

from sqlalchemy import ForeignKey, LargeBinary, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    """Holds the tables' descriptions."""


class BookRow(Base):
    """The name of the case book, which its key file bears too: there is one row."""

    __tablename__ = "book"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)


class CaseRow(Base):
    """One case, encrypted in three parts, since a list of many cases needs the first alone."""

    __tablename__ = "sealed_cases"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    owner: Mapped[str] = mapped_column(String(64), index=True)
    """Code of the login name, `sealing.owner_code`."""
    version: Mapped[int] = mapped_column(default=1)
    """Grows with each change, so that an edit of an older state is noticed."""
    card: Mapped[bytes] = mapped_column(LargeBinary)
    """Owner, patient, lesion, time."""
    record: Mapped[bytes] = mapped_column(LargeBinary)
    """Consent and diagnosis."""
    finding: Mapped[bytes] = mapped_column(LargeBinary)
    """Confirmed class and note."""
    photos: Mapped[list["PhotoRow"]] = relationship(
        cascade="all, delete-orphan", order_by="PhotoRow.position", passive_deletes=True
    )


class PhotoRow(Base):
    """One photo of a case, re-encoded and encrypted."""

    __tablename__ = "sealed_photos"

    case_id: Mapped[str] = mapped_column(
        String(32), ForeignKey("sealed_cases.id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(primary_key=True)
    jpeg: Mapped[bytes] = mapped_column(LargeBinary)
