"""The report of a dataset: one HTML file that needs nothing else, on a screen and on paper.

It is the same for the same dataset, since it bears no date. It stays in the dataset's folder,
since it names files, addresses and small counts of people. Of images it shows small copies where
the licence allows a changed copy, and none that is flagged for privacy.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from skindx.core.atomic_files import write_text
from skindx.core.errors import UserError
from skindx.core.text import html_environment, keep_units
from skindx.core.untrusted import MALFORMED, read_json
from skindx.data.decisions import PRIVATE, Flag, looked_at, read_flags
from skindx.data.layout import COPIES, ISSUES, REPORT, SUMMARY, TAXONOMY, stored_file
from skindx.data.manifest import (
    MOST_SUMMARY,
    SPLITS,
    Issue,
    Record,
    read_issues,
    read_manifest,
)
from skindx.data.publish.published_rows import withheld_of
from skindx.data.report.dataset_facts import DatasetFacts, dataset_facts, short
from skindx.data.summary import STAGES
from skindx.imaging.image_formats import DamagedImage
from skindx.imaging.resize import small_jpeg
from skindx.imaging.sandboxed_images import decode_limited
from skindx.taxonomy import Taxonomy

if TYPE_CHECKING:
    from jinja2 import Template

MOST_PICTURES = 60
_OF_ONE_CLASS = 6
_SIDE = 132
_QUALITY = 72


@dataclass(frozen=True, slots=True)
class Sample:
    """A small picture; `credit` is what its licence asks for."""

    file: str
    jpeg: bytes
    credit: str


def write_report(dataset: Path) -> Path:
    """Write DATASET/report.html of what stands in the folder, also of an older version's.

    Raises UserError for what is no dataset, and for a summary that no build wrote.
    """
    records = read_manifest(dataset)
    issues = read_issues(dataset) if (dataset / ISSUES).exists() else []
    taxonomy = Taxonomy.load(dataset / TAXONOMY) if (dataset / TAXONOMY).exists() else None
    file = dataset / SUMMARY
    summary = read_json(file, MOST_SUMMARY, finite=False) if file.exists() else {}
    flags, compared = read_flags(dataset), (dataset / COPIES).exists()
    try:
        page = render_report(
            dataset,
            records,
            issues=issues,
            taxonomy=taxonomy,
            summary=summary,
            flags=flags,
            compared=compared,
        )
    except UserError:
        raise
    except MALFORMED as error:
        raise UserError(
            f"{file} is damaged ({type(error).__name__}: {error}); delete it, or run `skindx "
            "build` again."
        ) from None
    write_text(dataset / REPORT, page)
    return dataset / REPORT


def renew_report(dataset: Path) -> None:
    """Write the report again where there is one: images were flagged or taken down since."""
    if (dataset / REPORT).exists():
        try:
            write_report(dataset)
        except UserError:
            (dataset / REPORT).unlink()  # it may show what is not to be shown any more
            raise


def render_report(
    dataset: Path,
    records: Sequence[Record],
    *,
    issues: Sequence[Issue],
    taxonomy: Taxonomy | None,
    summary: Mapping[str, Any],
    flags: Sequence[Flag],
    compared: bool,
) -> str:
    """Return the report as HTML that is well-formed XML too; every value is escaped.

    `dataset` has the images, and what audits and people have said of them.
    """
    name = short(str(summary.get("name") or "dataset"), 80)
    facts = dataset_facts(records, issues, taxonomy, summary, flags, name=name, compared=compared)
    samples, withheld = sample_pictures(dataset, records, facts, flags)
    audited = set()
    with suppress(UserError):  # a damaged table: as if no program had looked
        audited = looked_at(dataset)
    html = _template().render(
        f=facts,
        splits=SPLITS,
        stages=STAGES,
        samples=samples,
        credits=sorted({sample.credit for _, of_one in samples for sample in of_one} - {""}),
        withheld=withheld,
        unaudited=sum(record.sha256 not in audited for record in records),
    )
    return keep_units(html)


@cache
def _template() -> "Template":
    environment = html_environment("skindx.data.report")
    environment.filters |= {"base64": _base64, "number": "{:,}".format, "short": short}
    environment.filters |= {"share": _share, "code": _code}
    return environment.get_template("report.html.jinja")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _code(sentence: str) -> Markup:
    """Return a sentence whose `commands` are set as such; all else is escaped."""
    text = re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(sentence)))
    return Markup(text)  # noqa: S704 - escaped above


def _share(part: int, whole: int) -> str:
    """Return a percentage that is 0 or 100 only where it is exactly so."""
    if not part or part == whole:
        return "100 %" if part else "0 %"
    percent = 100 * part / max(1, whole)
    return "< 1 %" if percent < 1 else "> 99 %" if percent > 99 else f"{percent:.0f} %"


def sample_pictures(
    dataset: Path, records: Sequence[Record], facts: DatasetFacts, flags: Iterable[Flag]
) -> tuple[list[tuple[str, list[Sample]]], list[tuple[str, int]]]:
    """Return the listed classes with a few pictures each, and why images may not be shown.

    Of each class those with the first hashes, one a group, which is as good as by lot.
    """
    private = {flag.sha256 for flag in flags if flag.reason in PRIVATE}
    withheld = {sha256: reason for sha256, (reason, _) in withheld_of(dataset, records).items()}
    withheld |= dict.fromkeys(private, "flagged for privacy")
    by_class: dict[str, list[Record]] = {}
    for record in records:
        if record.sha256 not in withheld:
            by_class.setdefault(record.label, []).append(record)
    most = min(_OF_ONE_CLASS, max(1, MOST_PICTURES // max(1, len(facts.classes))))
    samples = []
    for row in facts.classes[:MOST_PICTURES]:
        records_of_one = _first_of_groups(by_class.get(row.key, ()), most)
        of_one = [one for record in records_of_one if (one := _sample(dataset, record))]
        samples += [(row.name, of_one)] if of_one else []
    here = {record.sha256 for record in records}
    counts: dict[str, int] = {}
    for sha256, reason in withheld.items():
        if sha256 in here:
            words = _WITHHELD.get(reason, reason)
            counts[words] = counts.get(words, 0) + 1
    return samples, sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


_WITHHELD = {
    "licence-unknown": "with no known licence",
    "licence-reserved": "with a licence that permits no copies",
    "licence-no-derivatives": "with a licence that permits no changed copies",
    "attribution-missing": "with nobody to name, which the licence asks for",
    "review-pending": "flagged for privacy",
    "reviewed": "withheld by a person",
}


def _first_of_groups(records: Iterable[Record], most: int) -> Iterator[Record]:
    groups: set[str] = set()
    for record in sorted(records, key=lambda record: record.sha256):
        if len(groups) < most and record.group not in groups:
            groups.add(record.group)
            yield record


def _sample(dataset: Path, record: Record) -> Sample | None:
    """Return a small picture; None for one that cannot be read: the report does without it."""
    try:
        data = stored_file(dataset, record.path).read_bytes()
        pixels_HW3 = decode_limited(data, at_least=(_SIDE, _SIDE))
    except (UserError, OSError, DamagedImage):
        return None
    credit = " – ".join(filter(None, (record.attribution or record.creator, record.licence)))
    jpeg = small_jpeg(pixels_HW3, _SIDE, quality=_QUALITY)
    return Sample(short(record.source_url), jpeg, short(credit))
