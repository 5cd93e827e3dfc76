"""Why photos are not judged at all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from skindx.core.errors import UserError
from skindx.diagnosis.record import Photo

Gate = Literal["unreadable", "size", "light", "blur", "no-skin", "unfamiliar"]


@dataclass(frozen=True)
class Refusal:
    """Why one photo of a case is not judged."""

    photo: int
    """Which of the case's photos, from 0."""
    gate: Gate
    message: str
    """One sentence on what is wrong and what to do."""
    shown: bytes = b""
    """A small JPEG of a photo that most browsers cannot show; empty for others, or if damaged."""
    seen: Photo | None = None
    """The photo with the detector's boxes, where the networks saw it: it may be a wide one."""


class Refused(UserError):  # noqa: N818
    """A case with photos that no diagnosis should rest on; `gate` and `photo` are of the first."""

    def __init__(
        self, gate: Gate, message: str, photo: int = 0, refusals: tuple[Refusal, ...] = ()
    ) -> None:
        super().__init__(message)
        self.gate = gate
        self.photo = photo
        """Which of the case's photos, from 0."""
        self.refusals = refusals or (Refusal(photo, gate, message),)
        """One for every refused photo, in their order."""

    @classmethod
    def of(cls, refusals: Sequence[Refusal], photos: int) -> Self:
        """Return the error of a case of so many photos; it names them where there are several."""
        ordered = tuple(sorted(refusals, key=lambda refusal: refusal.photo))
        first = ordered[0]
        if photos == 1:
            return cls(first.gate, first.message, first.photo, ordered)
        said = "; ".join(
            f"photo {refusal.photo + 1}: {refusal.message.rstrip('.')}" for refusal in ordered
        )
        return cls(first.gate, f"{said}.", first.photo, ordered)

    def __reduce__(self) -> tuple[type["Refused"], tuple[Gate, str, int, tuple[Refusal, ...]]]:
        """Cross a border between processes whole: an exception alone would give its message."""
        return type(self), (self.gate, str(self), self.photo, self.refusals)
