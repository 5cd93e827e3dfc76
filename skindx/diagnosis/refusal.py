"""Why a photo is not judged at all."""

from typing import Literal

from skindx.errors import UserError

Gate = Literal["unreadable", "size", "light", "blur", "no-skin", "unfamiliar"]


class Refused(UserError):  # noqa: N818
    """A photo that no diagnosis should rest on: one sentence on what is wrong and what to do."""

    def __init__(self, gate: Gate, message: str, photo: int = 0) -> None:
        super().__init__(message)
        self.gate = gate
        self.photo = photo
        """Which of the case's photos, from 0."""

    def __reduce__(self) -> tuple[type["Refused"], tuple[Gate, str, int]]:
        """Cross a border between processes whole: an exception alone would give its message."""
        return type(self), (self.gate, str(self), self.photo)

    def among(self, photos: int) -> "Refused":
        """Return the same, naming the photo where the case has several."""
        if photos == 1:
            return self
        return Refused(self.gate, f"photo {self.photo + 1}: {self}", self.photo)
