"""The stages of a build, in the order in which they run; each records what it takes out."""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from skindx.core.errors import UserError
from skindx.data.build.build_run import BuildRun
from skindx.data.build.copy_stage import GroupedImages, group_images
from skindx.data.copies.deduplicate import Distinct, LabelledImage, deduplicate, distinct
from skindx.data.copies.hash_links import near_links_by_chunks
from skindx.data.decisions import Flag, Reason, answered_skin, read_decisions, relabelled
from skindx.data.labels import (
    UNMAPPED,
    is_label,
    left_out_notes,
    map_labels,
    match_notes,
    no_label_notes,
    taxonomy_of,
    unmapped_label,
)
from skindx.data.layout import LEDGER
from skindx.data.ledger import LedgerRow
from skindx.data.manifest import Issue, Record, decoding_of
from skindx.data.screening.screen import Screened, screen
from skindx.data.sources.image_source import NO_LABEL
from skindx.imaging.skin_content import DESCRIPTIONS, LIMIT
from skindx.imaging.stored_colours import AS_STORED
from skindx.taxonomy import Taxonomy

NOT_SKIN: Reason = "not-skin"
"""Reason of an image whose pixels alone show no skin."""

MIN_GROUPS = 3
"""A class of fewer groups cannot be in train, in test, and where choices are made."""

SMALL_PX = 200
"""An image whose longer side has no more pixels is a thumbnail, whatever its address says."""
DOUBTFUL_PX = 640
"""Up to this longer side an image is one if its address says so."""
_SHARE = 0.5
_NAMED = re.compile(
    r"[-_]\d{2,4}x\d{2,4}\.\w+$"  # WordPress: acne-300x225.jpg
    r"|/\d{2,4}px-[^/]*$"  # MediaWiki: 330px-Acne.jpg
    r"|thumb|[-_./](small|preview|icon)s?\b"
    r"|[?&](w|h|width|height|size|resize)=\d{1,3}(?!\d)",
    re.IGNORECASE,
)


def screen_rows(run: BuildRun, rows: Sequence[LedgerRow]) -> list[tuple[LedgerRow, Screened]]:
    """Decode and judge each stored image once; what is not sound becomes an issue."""
    stored = [row for row in rows if row.status == "stored"]
    run.issues += [_issue(row, row.status, row.detail) for row in rows if row.status != "stored"]
    paths = sorted({row.path for row in stored})
    screened = screen(
        run.out,
        paths,
        run.settings.screen,
        run.settings.dedup.hashes,
        runner=run.runner,
        on_progress=lambda done, total: run.report("screen", done, total),
    )
    verdicts = dict(zip(paths, screened, strict=True))
    dropped = not_skin_issues(run, stored, verdicts)
    run.notes += thumbnail_notes((row, verdicts[row.path]) for row in stored)
    sound: list[tuple[LedgerRow, Screened]] = []
    for row in stored:
        verdict = verdicts[row.path]
        if verdict.sha256 not in {"", row.sha256}:
            run.issues.append(_issue(row, "changed", "the stored file is not the one that came"))
        elif row.sha256 in dropped:
            run.issues.append(_issue(row, NOT_SKIN, dropped[row.sha256]))
        elif verdict.reason is None:
            sound.append((row, verdict))
        else:
            run.issues.append(_issue(row, verdict.reason, verdict.detail))
    if not sound:
        if run.taxonomy:
            # All of them: where nothing came, the taxonomy need not be to blame.
            map_labels([row.label for row in rows], run.taxonomy, run.settings.min_known)
        why = Counter(issue.reason for issue in run.issues).most_common()
        reasons = ", ".join(f"{count} {reason}" for reason, count in why)
        reasons = reasons or "the sources named none"
        ledger = run.out / LEDGER
        where = f"; {ledger} says it URL by URL" if ledger.exists() else ""
        details = (issue.detail for issue in run.issues if why and issue.reason == why[0][0])
        most = next(filter(None, details), "").rstrip(".")
        raise UserError(
            f"none of the {len(rows)} images of {run.settings.name} can be used ({reasons})"
            f"{where}; check the sources and the `screen` limits."
            + (f" For example, one is {why[0][0]}: {most}." if most else "")
        )
    return sound


def label_rows(
    run: BuildRun, sound: Sequence[tuple[LedgerRow, Screened]]
) -> tuple[Taxonomy, Distinct]:
    """Map the sources' labels to the taxonomy's keys; an unmapped label becomes an issue.

    An image that a person relabelled has that class under every label.
    """
    taxonomy = run.taxonomy
    nameless = Counter(row.label for row, _ in sound if not is_label(row.label, taxonomy))
    run.notes += no_label_notes(nameless)
    if len(sound) == nameless.total():
        raise UserError(
            f"no image of {run.settings.name} has a label with a class name; the labels look like "
            f"{next(iter(nameless))!r}, so correct them in the sources."
        )
    if taxonomy is None:
        labels = [row.label for row, _ in sound if row.label not in nameless]
        taxonomy, lines = taxonomy_of(labels, run.settings.name, run.settings.urgency)
        run.notes += lines
    known = _known_labels(run, sound, taxonomy, nameless)
    run.notes += match_notes(known, taxonomy)
    left = (row.label for row, _ in sound if row.label not in known)
    strange = Counter(label for label in left if label not in nameless)
    run.notes += left_out_notes(strange, taxonomy)
    corrected = relabelled(run.out)
    if strangers := sorted(set(corrected.values()) - set(taxonomy.keys)):
        run.notes.append(
            f"a person relabelled images as {', '.join(strangers)}, which is no class of "
            f"{taxonomy.name}; these images keep their label."
        )
        corrected = {sha: label for sha, label in corrected.items() if label in taxonomy.keys}
    images: list[LabelledImage] = []
    for row, screened in sound:
        if row.sha256 in corrected:
            images.append(LabelledImage(row, corrected[row.sha256], screened))
        elif row.label in known:
            images.append(LabelledImage(row, known[row.label], screened))
        elif row.label in nameless:
            run.issues.append(_issue(row, NO_LABEL[0], f"{row.label!r} names no class"))
        else:
            run.issues.append(_issue(row, *unmapped_label(row.label, taxonomy)))
    return taxonomy, distinct(images)


def _known_labels(
    run: BuildRun,
    sound: Sequence[tuple[LedgerRow, Screened]],
    taxonomy: Taxonomy,
    nameless: Collection[str],
) -> dict[str, str]:
    """Map labels to keys; those that were not even fetched count as unknown. Raises UserError."""
    labels = [row.label for row, _ in sound if row.label not in nameless]
    unfetched = (issue.label for issue in run.issues if issue.reason in UNMAPPED)
    labels += [label for label in unfetched if is_label(label, taxonomy)]
    return map_labels(labels, taxonomy, run.settings.min_known)


def clean(run: BuildRun, images: Distinct) -> GroupedImages:
    """Drop duplicates and contradictions, and group what belongs together."""
    settings = run.settings
    run.report("compare", 0, len(images))
    codes_NKO = np.stack([same[0].screened.codes_KO for same in images])
    radius = max(settings.dedup.radius, settings.groups.radius)
    report = partial(run.report, "compare")
    links_L3 = near_links_by_chunks(codes_NKO, radius, run.out, run.runner, report)
    cleaned = deduplicate(images, links_L3, settings.dedup.radius)
    run.keys.check(images)
    run.notes += run.keys.notes(images)
    grouped = group_images(run, images, cleaned, links_L3)
    run.issues += grouped.cleaned.issues
    run.report("compare", len(images), len(images))
    return grouped


def drop_small_classes(
    run: BuildRun, kept: Sequence[LabelledImage], grouped: GroupedImages, images: Distinct
) -> tuple[list[LabelledImage], dict[str, str]]:
    """Take out classes that cleaning left with too few groups; return (kept, why by class).

    A class that only joined copies leave with too few groups stays, whole, and is named.
    """
    given = Counter(image.label for same in images for image in same)
    left = Counter(image.label for image in kept)
    independent = _groups_by_class(kept, grouped.apart)
    joined = _groups_by_class(kept, grouped.groups)
    dropped = {
        key: f"{left[key]} of {given[key]} images are left after cleaning, in {independent[key]} "
        f"independent groups; a class needs {MIN_GROUPS}"
        for key in sorted(given)
        if independent[key] < MIN_GROUPS
    }
    if len(given) - len(dropped) < 2:
        raise UserError(
            f"only {len(given) - len(dropped)} of {len(given)} classes of {run.settings.name} are "
            f"left after cleaning, and a classifier needs two ({next(iter(dropped))}: "
            f"{dropped[next(iter(dropped))]}); add images of the lost classes."
        )
    run.notes += [
        f"{key}: joining copies leaves {joined[key]} of its {independent[key]} groups, too few for "
        f"every split; look at its copies, or add images."
        for key in sorted(joined)
        if joined[key] < MIN_GROUPS <= independent[key]
    ]
    for image in kept:
        if image.label in dropped:
            row, detail = image.row, dropped[image.label]
            issue = Issue(row.url, row.sha256, image.label, "class-too-small", detail)
            run.issues.append(issue)
    return [image for image in kept if image.label not in dropped], dropped


def _groups_by_class(kept: Sequence[LabelledImage], groups: Mapping[str, str]) -> Counter[str]:
    names = {(image.label, groups[image.row.sha256]) for image in kept}
    return Counter(label for label, _ in names)


def _issue(row: LedgerRow, reason: str, detail: str) -> Issue:
    return Issue(row.url, row.sha256, row.label, reason, detail)


def not_skin_issues(
    run: BuildRun, rows: Iterable[LedgerRow], verdicts: Mapping[str, Screened]
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
        row.sha256: DESCRIPTIONS[verdicts[row.path].shows]
        for row in rows
        if verdicts[row.path].not_skin >= LIMIT and row.sha256 not in wanted
    }


def flag_records(
    run: BuildRun, records: Sequence[Record], by_sha: Mapping[str, Sequence[LabelledImage]]
) -> None:
    """Flag the images of the dataset that look like no skin, unless a person called them skin."""
    settings, answered = run.settings.screen, answered_skin(run.out)
    if settings.not_skin == "review":
        for record in records:
            screened = by_sha[record.sha256][0].screened
            if screened.not_skin >= LIMIT and record.sha256 not in answered:
                flag = Flag(
                    record.sha256, NOT_SKIN, screened.not_skin, DESCRIPTIONS[screened.shows]
                )
                run.flags.append(flag)


def count_colours(
    run: BuildRun, records: Sequence[Record], by_sha: Mapping[str, Sequence[LabelledImage]]
) -> dict[str, int]:
    """Count what came of the images' colours; note hashes that an earlier build made otherwise."""
    counts = Counter(
        note for record in records for note in by_sha[record.sha256][0].screened.colours.split()
    )
    changed = counts["colours-converted"]
    if changed and decoding_of(run.out) == AS_STORED:
        run.notes.append(
            f"the earlier build ignored colour profiles and this one applies them: {changed} "
            "images have other pixels and hashes. Train again to use them; a bundle of the earlier "
            "build goes on ignoring profiles."
        )
    return dict(counts)


def thumbnail_notes(images: Iterable[tuple[LedgerRow, Screened]]) -> list[str]:
    """Return a sentence for each web source of which at least half of the images are thumbnails."""
    by_source: dict[str, list[tuple[LedgerRow, Screened]]] = defaultdict(list)
    for row, screened in images:
        if screened.width and "://" in row.url:
            by_source[row.source].append((row, screened))
    notes = []
    for source, pairs in sorted(by_source.items()):
        small = [(row, screened) for row, screened in pairs if is_thumbnail(row.url, screened)]
        if len(small) >= _SHARE * len(pairs):
            row, screened = small[0]
            # Of all sources an atlas alone is named by its address, and read by selectors.
            hint = ", and set the selector `picture` to them" if "://" in source else ""
            notes.append(
                f"{len(small)} of {len(pairs)} images of {source} seem to be thumbnails, such "
                f"as {row.url} ({screened.width} x {screened.height} pixels); look whether its "
                f"pages name larger versions{hint}."
            )
    return notes


def is_thumbnail(url: str, screened: Screened) -> bool:
    """Tell whether an image is a small copy, by its size or by what its address says."""
    longer = max(screened.width, screened.height)
    return longer <= SMALL_PX or (longer <= DOUBTFUL_PX and _NAMED.search(url) is not None)
