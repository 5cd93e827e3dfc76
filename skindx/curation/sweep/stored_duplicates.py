"""Near duplicates that a build dropped and the store still has: a sweep may keep them again."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from skindx.data.layout import store_files
from skindx.data.manifest import Record, read_issues
from skindx.data.stored_image import read_image


def stored_duplicates(dataset: Path, records: Sequence[Record]) -> list[Record]:
    """Return their records, each in the group and split of the image that stayed in its place."""
    kept = {record.sha256: record for record in records}
    found: dict[str, Record] = {}
    for issue in read_issues(dataset):
        stays = kept.get(issue.kept_sha256)
        if issue.reason != "near-duplicate" or stays is None or issue.sha256 in kept:
            continue
        for file in sorted(store_files(dataset, issue.sha256)):
            path = file.relative_to(dataset).as_posix()
            record = replace(
                stays, path=path, sha256=issue.sha256, label=issue.label, source_url=issue.url
            )
            height, width = read_image(dataset, record).shape[:2]
            found[issue.sha256] = replace(record, width=width, height=height)
    return [found[sha256] for sha256 in sorted(found)]
