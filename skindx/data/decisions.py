"""Flags that programs raise for review, and what people's answers make of them.

Whether an image shows skin is no decision: who says that it does has not said that it may be
published.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from skindx.data.answer_log import AnswerLog, ReviewAnswer, read_answers_to
from skindx.data.layout import MANIFEST
from skindx.data.manifest import read_manifest, read_rows, write_table
from skindx.data.typed_rows import Float32

FLAGS = "flags.parquet"
LOOKED_AT = "looked_at.parquet"

Reason = Literal["face", "text", "intimate", "label", "off-topic", "not-skin", "quality"]
PRIVATE: frozenset[Reason] = frozenset({"face", "text", "intimate"})
"""An image with such a flag is not given away before a person has said that it may be."""

SKIN_REASONS: frozenset[Reason] = frozenset({"not-skin", "off-topic"})
"""Reasons that are settled by a person's answer whether the image shows skin."""

REVIEWED = "reviewed"
"""Reason of an image that a person kept out."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One reason to look at one image. `score` in 0..1: how sure the program is."""

    sha256: str
    reason: Reason
    score: Float32
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """A program has looked at one image for one reason, whether it raised a flag or not."""

    sha256: str
    reason: Reason


def write_flags(dataset: Path, flags: Iterable[Flag], replacing: Iterable[Reason]) -> None:
    """Write flags of the reasons `replacing`, atomically; flags of other reasons stay.

    The caller has looked at every image of the manifest for these reasons, which is noted too:
    an image without a flag is one that was looked at, or one that came later.
    """
    gone = set(replacing)
    write_table(dataset / FLAGS, replaced_flags(read_flags(dataset), flags, gone), Flag)
    if (dataset / MANIFEST).exists():
        _note_looks(dataset, gone)


def stage_flags(
    dataset: Path, staging: Path, flags: Sequence[Flag], replacing: Iterable[Reason]
) -> None:
    """Write the new flags of `dataset` to `staging`, unless it had none and gets none.

    As `write_flags` does, for who changes several tables together and looked while it built them.
    """
    before = read_flags(dataset)
    after = replaced_flags(before, flags, replacing)
    if after != before:
        write_table(staging / FLAGS, after, Flag)


def replaced_flags(
    before: Iterable[Flag], flags: Iterable[Flag], replacing: Iterable[Reason]
) -> list[Flag]:
    """Return new flags, which take the place of older ones of the reasons `replacing`."""
    gone = set(replacing)
    rows = [flag for flag in before if flag.reason not in gone] + list(flags)
    return sorted(rows, key=lambda flag: (flag.sha256, flag.reason, -flag.score, flag.detail))


def _note_looks(dataset: Path, reasons: set[Reason]) -> None:
    looks = [look for look in _read_looks(dataset) if look.reason not in reasons]
    looks += [Look(r.sha256, reason) for r in read_manifest(dataset) for reason in sorted(reasons)]
    write_table(dataset / LOOKED_AT, looks, Look)


def _read_looks(dataset: Path) -> list[Look]:
    if not (dataset / LOOKED_AT).exists():
        return []
    rows = read_rows(dataset / LOOKED_AT, Look, "run `skindx audit` again")
    return [Look(**row) for row in rows]


def looked_at(dataset: Path, reasons: Iterable[Reason] = PRIVATE) -> set[str]:
    """Return the SHA-256 of the images that programs have looked at for all of `reasons`."""
    seen: dict[Reason, set[str]] = defaultdict(set)
    for look in _read_looks(dataset):
        seen[look.reason].add(look.sha256)
    return set.intersection(*(seen[reason] for reason in reasons))


def read_flags(dataset: Path) -> list[Flag]:
    """Read a dataset folder's flags; none when no program has looked yet. Raises UserError."""
    if not (dataset / FLAGS).exists():
        return []
    return [Flag(**row) for row in read_rows(dataset / FLAGS, Flag, "run `skindx audit` again")]


def read_decisions(dataset: Path) -> dict[str, ReviewAnswer]:
    """Read what people decided: SHA-256 -> keep, withhold or remove. Raises UserError."""
    return _of_images(read_answers_to(dataset, "image"))


def read_skin_answers(dataset: Path) -> dict[str, ReviewAnswer]:
    """Read of which images people said whether they show skin. Raises UserError."""
    return _of_images(read_answers_to(dataset, "skin"))


def answered_skin(dataset: Path) -> dict[str, bool]:
    """Return for each image of which a person said something whether it shows skin."""
    answers = read_skin_answers(dataset)
    return {sha256: answer.verdict == "skin" for sha256, answer in answers.items()}


def relabelled(dataset: Path) -> dict[str, str]:
    """Return SHA-256 -> class of the images whose label a person corrected."""
    answers = _of_images(read_answers_to(dataset, "label"))
    return {sha256: answer.label for sha256, answer in answers.items()}


def _of_images(answers: dict[tuple[str, ...], ReviewAnswer]) -> dict[str, ReviewAnswer]:
    return {sha256: answer for (sha256,), answer in answers.items()}


def settles(log: AnswerLog, sha256: str, reason: Reason) -> bool:
    """Tell whether a person's answers settle what a flag of this reason asks."""
    key = (sha256,)
    return (
        log.latest("image", key) is not None
        or (reason in SKIN_REASONS and log.latest("skin", key) is not None)
        or (reason == "label" and log.latest("label", key) is not None)
    )


def undecided(dataset: Path, reasons: Iterable[Reason] = PRIVATE) -> dict[str, list[Flag]]:
    """Return SHA-256 -> flags of `reasons` that are not decided."""
    wanted, log = set(reasons), AnswerLog(dataset)
    waiting: dict[str, list[Flag]] = defaultdict(list)
    for flag in read_flags(dataset):
        if flag.reason in wanted and not settles(log, flag.sha256, flag.reason):
            waiting[flag.sha256].append(flag)
    return dict(waiting)
