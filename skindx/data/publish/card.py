"""The dataset card: README.md with front matter that the Hugging Face hub reads."""

import html
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from skindx.core.text import markdown_environment, printable
from skindx.data.licence import parse_licence
from skindx.data.manifest import SPLITS, Issue
from skindx.data.publish.columns import card_features, tar_features
from skindx.data.publish.facts import Facts, newest
from skindx.data.publish.formats import Format
from skindx.data.publish.row import Row
from skindx.taxonomy import Taxonomy

CARD = "README.md"
_PATTERNS: dict[Format, tuple[str, ...]] = {
    "hub": ("data/{split}-*.parquet",),
    "imagefolder": ("{split}/**",),
    "webdataset": ("data/{split}-*.tar",),
}
_SIZE_NAMES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (10**6, "100K<n<1M"))
# The names of licences that the hub knows.
_HUB = (
    r"cc0-1\.0|cc-by-(?:2\.0|2\.5|3\.0|4\.0)|cc-by-sa-(?:3\.0|4\.0)|cc-by-nc-(?:2\.0|3\.0|4\.0)"
    r"|cc-by-nc-sa-(?:2\.0|3\.0|4\.0)|mit|apache-2\.0"
)


def write_card(
    folder: Path,
    *,
    rows: Sequence[Row],
    issues: Sequence[Issue],
    taxonomy: Taxonomy,
    facts: Facts,
    plots: Sequence[str],
    limits: Sequence[str],
) -> None:
    """Write `folder`/README.md."""
    environment = markdown_environment("skindx.data.publish", ".")
    environment.filters["plain"] = plain
    published = [row for row in rows if not row.withheld]
    text = environment.get_template("card.md.jinja").render(
        front=yaml.safe_dump(
            _front(folder, published, taxonomy, facts), sort_keys=False, allow_unicode=True
        ),
        facts=facts,
        day=newest([row.retrieved for row in rows]),
        kept=len(rows),
        published=len(published),
        reencoded=sum(row.reencoded for row in published),
        splits=[split for split in SPLITS if any(row.split == split for row in rows)],
        classes=_classes(rows, taxonomy),
        licences=_licences(rows),
        stated={said: sum(r.licence_said == said for r in rows) for said in facts.stated_licences},
        withheld=Counter(row.withheld for row in rows if row.withheld).most_common(),
        issues=Counter(issue.reason for issue in issues).most_common(),
        plots=plots,
        limits=limits,
    )
    (folder / CARD).write_text(text, encoding="utf-8")


def plain(text: str) -> str:
    """Return foreign text so that Markdown and HTML show it and do nothing else with it."""
    line = html.escape(printable(" ".join(str(text).split())))
    return re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", line).replace("://", "\\://")


def _front(
    folder: Path, published: Sequence[Row], taxonomy: Taxonomy, facts: Facts
) -> dict[str, Any]:
    splits = [split for split in SPLITS if any(row.split == split for row in published)]
    front: dict[str, Any] = {
        "pretty_name": facts.name,
        **_front_licence(published),
        "task_categories": ["image-classification"]
        + (["object-detection"] if any(row.boxes for row in published) else []),
        "tags": ["dermatology", "skin", "medical", "croissant"],
        "size_categories": [next((k for n, k in _SIZE_NAMES if len(published) < n), "1M<n<10M")],
    }
    if not published:
        return front
    patterns = _PATTERNS[facts.format]
    front["configs"] = [
        {
            "config_name": "default",
            "data_files": [
                {"split": split, "path": [pattern.format(split=split) for pattern in patterns]}
                for split in splits
            ],
        }
    ]
    if facts.format == "hub":
        features = card_features(taxonomy.keys)
        front["dataset_info"] = {"features": features, **_sizes(folder, published, splits)}
    elif facts.format == "webdataset":
        suffixes = sorted({Path(row.file_name).suffix[1:] for row in published})
        front["dataset_info"] = {"features": tar_features(taxonomy.keys, suffixes)}
    return front


def _sizes(folder: Path, published: Sequence[Row], splits: Sequence[str]) -> dict[str, Any]:
    count = Counter(row.split for row in published)
    size = {
        split: sum(
            (folder / path).stat().st_size
            for path in {r.path for r in published if r.split == split}
        )
        for split in splits
    }
    return {
        "splits": [
            {"name": split, "num_bytes": size[split], "num_examples": count[split]}  # type: ignore[index]
            for split in splits
        ],
        "download_size": sum(size.values()),
        "dataset_size": sum(size.values()),
    }


def _front_licence(published: Sequence[Row]) -> dict[str, str]:
    names = {row.licence.lower() for row in published}
    if len(names) == 1 and re.fullmatch(_HUB, name := names.pop()):
        return {"license": name}
    return {"license": "other", "license_name": "per-picture", "license_link": "README.md"}


def _classes(rows: Sequence[Row], taxonomy: Taxonomy) -> list[dict[str, Any]]:
    published = Counter((row.label, row.split) for row in rows if not row.withheld)
    withheld = Counter(row.label for row in rows if row.withheld)
    return [
        {
            "name": disease.name,
            "icd10": disease.icd10,
            "counts": {split: published[disease.key, split] for split in SPLITS},
            "withheld": withheld[disease.key],
        }
        for disease in taxonomy.classes
    ]


def _licences(rows: Sequence[Row]) -> list[dict[str, Any]]:
    said = {row.licence: row.licence_said for row in rows}
    found = Counter(row.licence for row in rows)
    given = Counter(row.licence for row in rows if not row.withheld)
    lines = []
    for name, count in found.most_common():
        licence = parse_licence(said[name])
        duties: Mapping[str, bool] = {
            "name the creator": licence.needs_attribution,
            "no commercial use": licence.non_commercial,
            "share changes alike": licence.share_alike,
            "nothing is permitted": not licence.may_redistribute,
            "no changed copies": licence.may_redistribute and not licence.may_adapt,
        }
        lines.append(
            {
                "name": name,
                "url": licence.url,
                "found": count,
                "published": given[name],
                "duties": ", ".join(duty for duty, holds in duties.items() if holds) or "none",
            }
        )
    return lines
