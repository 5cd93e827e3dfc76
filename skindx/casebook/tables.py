"""The case book's tables."""

from datetime import datetime

from sqlalchemy import DateTime, ForeignKey, Index, LargeBinary, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    """Holds the tables' descriptions."""


class CaseRow(Base):
    """One kept case: who it is of, what was answered, what a clinician confirmed."""

    __tablename__ = "cases"
    __table_args__ = (Index("cases_of_a_lesion", "owner", "patient", "lesion"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    owner: Mapped[str] = mapped_column(String(200))
    """Login name; "" where nobody logs in."""
    patient: Mapped[str] = mapped_column(String(80))
    lesion: Mapped[str] = mapped_column(String(80))
    taken: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    consent: Mapped[str] = mapped_column(Text)
    consented: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    diagnosis: Mapped[str] = mapped_column(Text)
    confirmed: Mapped[str] = mapped_column(String(200), default="")
    note: Mapped[str] = mapped_column(Text, default="")
    photos: Mapped[list["PhotoRow"]] = relationship(
        cascade="all, delete-orphan", order_by="PhotoRow.position", passive_deletes=False
    )


class PhotoRow(Base):
    """One photo of a case, re-encoded: in the database, so that one deletion takes all of it."""

    __tablename__ = "photos"

    case_id: Mapped[str] = mapped_column(
        String(32), ForeignKey("cases.id", ondelete="CASCADE"), primary_key=True
    )
    position: Mapped[int] = mapped_column(primary_key=True)
    jpeg: Mapped[bytes] = mapped_column(LargeBinary)


class KeyRow(Base):
    """A secret that was made for this case book and never leaves it."""

    __tablename__ = "keys"

    purpose: Mapped[str] = mapped_column(String(40), primary_key=True)
    key: Mapped[bytes] = mapped_column(LargeBinary)
