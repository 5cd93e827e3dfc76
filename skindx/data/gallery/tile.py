"""One image, or one pair of copies, in a view of the gallery."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tile:
    """One image in one view."""

    sha256: str
    """"" when nothing was stored."""
    labels: tuple[str, ...]
    """Several where sources contradict each other."""
    facets: tuple[str, ...]
    """The split of a kept image, the reason of a dropped one, the flags of one to review."""
    urls: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    """Further facts, name and value."""
    beside: "Tile | None" = None
    """The image that stays in the place of a dropped one; the other one of a pair of copies."""
    drawing: str = ""
    """Files in which the gallery draws both, the second laid on the first."""
