"""Tiles of the gallery: an image with its caption."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from skindx.core.errors import UserError
from skindx.core.settings_base import read_yaml
from skindx.data.answer_log import ReviewAnswer
from skindx.data.boxes.box_join import read_counts
from skindx.data.decisions import (
    Flag,
    Reason,
    read_decisions,
    read_flags,
    read_skin_answers,
    undecided,
)
from skindx.data.layout import RECIPE, SUMMARY, stored_files
from skindx.data.manifest import Issue, Record, read_issues, read_manifest
from skindx.data.summary import STAGES


@dataclass(frozen=True, slots=True)
class Tile:
    """One image in one view."""

    sha256: str
    """"" when nothing was stored."""
    labels: tuple[str, ...]
    """Several where sources contradict each other."""
    facets: tuple[str, ...]
    """The split of a kept image, the reason of a dropped one."""
    urls: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    """Further facts, name and value."""
    beside: "Tile | None" = None
    """The image that stays in the place of a dropped one."""


View = Literal["kept", "dropped"]
VIEWS: tuple[View, ...] = get_args(View)


@dataclass(frozen=True, slots=True)
class Tiles:
    """All tiles of a dataset by view, and the stored file of each SHA-256."""

    name: str
    by_view: Mapping[View, Sequence[Tile]]
    files: Mapping[str, str]
    funnel: Sequence[Mapping[str, Any]] = ()
    """As the build's summary has it: by class, images named, fetched, sound, distinct, kept."""
    boxes: Sequence[str] = ()
    """What became of the recipe's box file, in lines."""
    waiting: int = 0
    """Images with a flag that waits for a person."""


def read_tiles(dataset: Path) -> Tiles:
    """Read a dataset folder's tables. Raises UserError for what is no dataset."""
    records, issues = read_manifest(dataset), read_issues(dataset)
    flags: dict[str, list[Flag]] = defaultdict(list)
    for flag in read_flags(dataset):
        flags[flag.sha256].append(flag)
    decisions, skin = read_decisions(dataset), read_skin_answers(dataset)
    kept = {
        r.sha256: _kept(r, flags.get(r.sha256, []), decisions.get(r.sha256), skin.get(r.sha256))
        for r in records
    }
    dropped = list(_dropped(issues, kept))
    files = {file.stem: file.relative_to(dataset).as_posix() for file in stored_files(dataset)}
    shown = {tile.sha256 for tile in (*kept.values(), *dropped)}
    return Tiles(
        _name(dataset),
        {"kept": list(kept.values()), "dropped": dropped},
        {sha256: path for sha256, path in files.items() if sha256 in shown},
        *_summary_parts(dataset),
        len(undecided(dataset, get_args(Reason))),
    )


def _summary_parts(dataset: Path) -> tuple[Sequence[Mapping[str, Any]], Sequence[str]]:
    """Return funnel and boxes of a dataset's summary; one of an older version has neither."""
    summary = dataset / SUMMARY
    if not summary.exists():
        return (), ()
    try:
        raw = json.loads(summary.read_text(encoding="utf-8"))
        funnel = raw.get("funnel", [])
        stages = ("label", *STAGES, "lost")
        boxes = read_counts(raw["boxes"]).lines() if raw.get("boxes") else []
        return [{stage: row[stage] for stage in stages} for row in funnel], boxes
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{summary} cannot be read ({error}); run `skindx build` again.") from None


def _name(dataset: Path) -> str:
    recipe = dataset / RECIPE
    name = read_yaml(recipe).get("name") if recipe.exists() else None
    return str(name or dataset.resolve().name)


def _kept(
    record: Record, flags: Sequence[Flag], decision: ReviewAnswer | None, skin: ReviewAnswer | None
) -> Tile:
    facts = [*image_facts(record), *map(_told, flags)]
    if decision:
        who = f" by {decision.by}" if decision.by else ""
        facts.append(("decided", f"{decision.verdict}{who}"))
    if skin:
        facts.append(("answer", f"{skin.verdict} by {skin.by}" if skin.by else skin.verdict))
    return Tile(record.sha256, (record.label,), (record.split,), (record.source_url,), tuple(facts))


def image_facts(record: Record) -> list[tuple[str, str]]:
    """Return what the manifest says of an image, as names and values."""
    facts = [("size", f"{record.width} × {record.height}"), *_origin(record)]
    if record.fold is not None:
        facts.append(("fold", str(record.fold)))
    if record.group != record.sha256:
        facts.append(("group", record.group))
    if record.boxes is not None:
        facts.append(("boxes", str(len(record.boxes)) if record.boxes else "looked, none"))
    return facts


def _origin(record: Record) -> Iterator[tuple[str, str]]:
    yield "licence", record.licence or "unknown"
    if record.creator:
        yield "by", record.creator
    if record.attribution:
        yield "credit", record.attribution
    if record.confirmed_by:
        yield "confirmed by", record.confirmed_by
    if record.caption:
        yield "caption", record.caption
    if record.skin_type is not None:
        yield "skin type", str(record.skin_type)
    if record.age is not None:
        yield "age", f"{record.age:g}"
    yield from ((name, text) for name, text in (("sex", record.sex), ("site", record.site)) if text)


def _told(flag: Flag) -> tuple[str, str]:
    return f"{flag.reason} {100 * flag.score:.0f} %", flag.detail


def _dropped(issues: Sequence[Issue], kept: Mapping[str, Tile]) -> Iterator[Tile]:
    """Yield one tile an issue; the same bytes under the same reason share one, with all labels."""
    same: dict[tuple[str, str], list[Issue]] = defaultdict(list)
    for issue in issues:
        same[issue.sha256 or issue.url, issue.reason].append(issue)
    for rows in same.values():
        first = rows[0]
        details = dict.fromkeys(issue.detail for issue in rows if issue.detail)
        yield Tile(
            first.sha256,
            tuple(dict.fromkeys(issue.label for issue in rows)),
            (first.reason,),
            tuple(dict.fromkeys(issue.url for issue in rows)),
            tuple(("why", detail) for detail in details),
            kept.get(first.kept_sha256),
        )
