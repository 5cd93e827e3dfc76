"""Images of a dataset that a bundle was made from, and copies of them: they measure nothing."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from skindx.core.errors import UserError
from skindx.core.machine import missing_modules
from skindx.data.manifest import Record, Split
from skindx.models.fingerprints import Fingerprints, described

Part = Split | Literal["all"]
"""What of a dataset is scored; all of it only where nothing of it was trained on."""

OWN = "the dataset is the one that the bundle was made from, whose groups keep copies together"
OLDER = "the bundle has no fingerprints of its images; pack it again to recognise them"
NO_NUMBA = "numba is not installed, which the comparison needs"


class MadeFrom(Protocol):
    """A predictor that knows the images that its bundle was made from."""

    @property
    def trained_on(self) -> str: ...
    @property
    def seen(self) -> Mapping[str, Split] | None: ...
    @property
    def fingerprints(self) -> Fingerprints | None: ...


@dataclass(frozen=True, slots=True)
class Contamination:
    """How many images were left out, and whether copies in other bytes were looked for."""

    same_bytes: int = 0
    near_copies: int = 0
    not_searched: str = OWN
    """Why such copies were not looked for; empty where they were."""


def leave_out(
    predictor: MadeFrom,
    dataset: Path,
    records: Sequence[Record],
    split: Part,
    *,
    manifest: str,
    bundle: str,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Record], Contamination]:
    """Return the records of `test` or `all` without images that made the bundle and their copies.

    Other splits are returned whole. `manifest` is the SHA-256 of the dataset's. Raises UserError
    when no record is left.
    """
    unseen = leave_out_seen(records, predictor.seen, split, bundle)
    exact = len(records) - len(unseen)
    prints, reason = predictor.fingerprints, ""
    if predictor.trained_on == manifest or split not in ("test", "all"):
        reason = OWN
    elif prints is None:
        reason = OLDER
    elif missing_modules("numba"):
        reason = NO_NUMBA
    if reason or prints is None:
        return unseen, Contamination(exact, not_searched=reason)
    copies = {copy.sha256 for copy in prints.recognise(described(dataset, unseen, progress))}
    rest = _without(unseen, copies, bundle)
    return rest, Contamination(exact, len(unseen) - len(rest), "")


def leave_out_seen(
    records: Sequence[Record], seen: Mapping[str, Split] | None, split: Part, bundle: str
) -> list[Record]:
    """Return the records of `test` or `all` without the images that made the bundle.

    Other splits are returned whole. Raises UserError when no record is left.
    """
    if not seen or split not in ("test", "all"):
        return list(records)
    known = {sha256 for sha256, of in seen.items() if of != "test"}
    return _without(records, known, bundle)


def _without(records: Sequence[Record], known: Collection[str], bundle: str) -> list[Record]:
    rest = [record for record in records if record.sha256 not in known]
    if not rest:
        raise UserError(
            f"{bundle} was made from every one of these {len(records)} images or from copies of "
            "them, so they measure nothing; evaluate on the split test of its dataset, or on "
            "another dataset."
        )
    return rest


def contamination_lines(contamination: Contamination) -> list[str]:
    """Return the sentences about copies in other bytes; none for a bundle's own dataset."""
    if contamination.not_searched == OWN:
        return []
    if contamination.not_searched:
        return [f"Copies in other bytes were not looked for: {contamination.not_searched}."]
    near = contamination.near_copies
    return [f"{near} images are left out: copies of images that the bundle was made from."]
