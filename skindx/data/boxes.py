"""Lesion boxes: the value type, and where boxes come from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """One rectangle in pixels of the stored picture, origin top left, x2/y2 exclusive.

    `label` is a class name or "lesion"; `drawn_by` says who drew it (a person, a file, a model).
    `score` in 0..1 is a detector's confidence, None for a box that was drawn.
    """

    x1: float
    y1: float
    x2: float
    y2: float
    label: str = "lesion"
    drawn_by: str = ""
    score: float | None = None

    def __post_init__(self) -> None:
        """Refuse an empty or reversed rectangle."""
        if not (self.x1 < self.x2 and self.y1 < self.y2):
            raise ValueError(f"box needs x1 < x2 and y1 < y2, got {self}")
