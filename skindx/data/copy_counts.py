"""Counts of copies that hashes miss: joined, uncertain, and divided by frozen splits."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from skindx.data.copies.recall import sentence


@dataclass(frozen=True, slots=True)
class CopyCounts:
    """Pairs of copies that a build verified, and the families that they make."""

    pairs: int = 0
    """Pairs verified by the images alone."""
    by_people: int = 0
    """Pairs that a person called the same."""
    refused: int = 0
    """Pairs that a person called different."""
    uncertain: int = 0
    """Pairs that wait for a person; they join nothing."""
    families: int = 0
    """Families of images that are one group because of such pairs."""
    images: int = 0
    """Kept images in these families."""
    dropped: int = 0
    """Images that `dedup.copies: drop` took out."""
    mixed: int = 0
    """Families with images of several classes."""
    torn: int = 0
    """Families that stand in several splits, since earlier builds placed them there."""
    torn_images: Mapping[str, int] = field(default_factory=dict)
    """Images of torn families, by split."""
    would_leave: Mapping[str, int] = field(default_factory=dict)
    """Images that joining torn families would drop, by split."""

    def lines(self) -> Iterator[str]:
        """Say it in sentences; nothing where no pair was found."""
        if self.pairs or self.by_people:
            by = f", {self.by_people} more by people" if self.by_people else ""
            yield (
                f"Copies that hashes miss: {self.pairs} pairs verified{by}; "
                + (f"{self.dropped} images dropped; " if self.dropped else "")
                + f"{self.families} families of {self.images} images are one group each."
            )
            yield sentence()
        if self.mixed:
            yield (
                f"{self.mixed} families of copies have images of several classes: check their "
                f"labels in the gallery."
            )
        if self.uncertain:
            yield (
                f"{self.uncertain} pairs may be copies and join nothing yet: say `same` or "
                f"`different` with `skindx annotate DATASET --copies`."
            )
        if self.torn:
            where = ", ".join(f"{count} in {split}" for split, count in self.torn_images.items())
            gone = ", ".join(f"{count} of {split}" for split, count in self.would_leave.items())
            yield (
                f"{self.torn} families of copies are divided between splits: earlier builds "
                f"placed them there ({where}). Build with --resplit to place all images again, or "
                f"with --join-copies to keep the splits and drop {gone}."
            )
