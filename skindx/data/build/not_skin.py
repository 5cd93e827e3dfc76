"""Images that look like no skin: what a build drops, and what it flags for a person to look at."""

from collections.abc import Iterable, Mapping, Sequence

from skindx.data.build.run import Run
from skindx.data.copies.deduplicate import LabelledImage
from skindx.data.decisions import Flag, Reason, answered_skin, read_decisions
from skindx.data.image_tables import unusual
from skindx.data.ledger import LedgerRow
from skindx.data.manifest import Record
from skindx.data.screening.screen import Screened
from skindx.imaging.skin_content import LIMIT, SAID

NOT_SKIN: Reason = "not-skin"
"""By the pixels alone."""
OFF_TOPIC: Reason = "off-topic"
"""By a table of scores."""
REASONS: tuple[Reason, ...] = (NOT_SKIN, OFF_TOPIC)


def not_skin_issues(
    run: Run, rows: Iterable[LedgerRow], verdicts: Mapping[str, Screened]
) -> dict[str, str]:
    """Return SHA-256 -> sentence of the images to drop; none unless `screen.not_skin` is drop.

    What a person decided to keep stays, and so does what a person called skin.
    """
    if run.settings.screen.not_skin != "drop":
        return {}
    decisions = read_decisions(run.out)
    wanted = {sha256 for sha256, decision in decisions.items() if decision.verdict == "keep"}
    wanted |= {sha256 for sha256, skin in answered_skin(run.out).items() if skin}
    return {
        row.sha256: said(verdicts[row.path])
        for row in rows
        if verdicts[row.path].not_skin >= LIMIT and row.sha256 not in wanted
    }


def flag_records(
    run: Run, records: Sequence[Record], by_sha: Mapping[str, Sequence[LabelledImage]]
) -> None:
    """Flag the images of the dataset that look like no skin, and those that a table finds unusual.

    What a person called skin is flagged for neither. Raises UserError for a table of another
    dataset.
    """
    settings, answered = run.settings.screen, answered_skin(run.out)
    if settings.not_skin == "review":
        for record in records:
            screened = by_sha[record.sha256][0].screened
            if screened.not_skin >= LIMIT and record.sha256 not in answered:
                flag = Flag(record.sha256, NOT_SKIN, screened.not_skin, said(screened))
                run.flags.append(flag)
    if settings.ood:
        high, known, model = unusual(settings.ood, [record.sha256 for record in records])
        for sha256, score in high.items():
            if sha256 in answered:
                continue
            share = score / (score + settings.ood.threshold)
            run.flags.append(Flag(sha256, OFF_TOPIC, share, f"unusual: {score:.1f} by {model}"))
        run.notes.append(f"{known} of {len(records)} images have an OOD score.")


def said(screened: Screened) -> str:
    """Return what an image shows in the place of skin, in words."""
    return SAID[screened.shows]
