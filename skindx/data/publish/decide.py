"""Decide which images may be published: licences, people's decisions, open flags."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from skindx.core.errors import UserError
from skindx.data.licence import RESERVED, UNKNOWN, Licence, parse_licence
from skindx.data.manifest import Record
from skindx.data.review import REVIEWED, Decision, Flag, looked_at, read_decisions, undecided

PENDING = "review-pending"
PRIVATE_REASONS = frozenset({REVIEWED, PENDING})
"""Of what is withheld for these, not even the address is given away."""


def check_audited(dataset: Path, records: Sequence[Record]) -> None:
    """Raise UserError unless a program has looked at every image for faces, text, intimacy.

    An image on which a person has decided needs no program.
    """
    seen = looked_at(dataset) | read_decisions(dataset).keys()
    unseen = sum(record.sha256 not in seen for record in records)
    if unseen:
        raise UserError(
            f"{unseen} of the {len(records)} images of {dataset} were not audited for faces, text "
            f"and intimate regions; run `skindx audit {dataset}` first, or give --unaudited "
            f"to publish without."
        )


def withheld_of(dataset: Path, records: Sequence[Record]) -> dict[str, tuple[str, str]]:
    """Return SHA-256 -> (reason, sentence) of the images whose bytes are not given away.

    What a person decided comes first, then flags that wait for a person, then the licence.
    """
    decisions, waiting = read_decisions(dataset), undecided(dataset)
    withheld = {}
    for record in records:
        why = _private(record, decisions, waiting) or _licensed(
            parse_licence(record.licence), record
        )
        if why:
            withheld[record.sha256] = why
    return withheld


def _private(
    record: Record, decisions: Mapping[str, Decision], waiting: Mapping[str, Sequence[Flag]]
) -> tuple[str, str] | None:
    decision = decisions.get(record.sha256)
    if decision and decision.verdict != "keep":
        # Not the note: a person wrote it for colleagues.
        return REVIEWED, f"A person who reviewed it decided: {decision.verdict}."
    if record.sha256 in waiting:
        # Not what for: it would be a list of such images.
        return PENDING, "A program flagged it, and there is no decision yet."
    return None


def _licensed(licence: Licence, record: Record) -> tuple[str, str] | None:
    said = f"the source says {record.licence[:200]!r}" if record.licence else "the source says none"
    if licence == UNKNOWN:
        return "licence-unknown", f"No known licence: {said}."
    if licence == RESERVED or not licence.may_redistribute:
        return "licence-reserved", f"Its licence permits no copies: {said}."
    if not licence.may_adapt:
        return (
            "licence-no-derivatives",
            f"{licence.id} permits no changed copies, and metadata is removed here.",
        )
    if licence.needs_attribution and not (record.creator.strip() or record.attribution.strip()):
        return (
            "attribution-missing",
            f"{licence.id} requires attribution, and the source names no creator.",
        )
    return None
