"""The dataset card: README.md with front matter that the Hugging Face hub reads, and its plots.

The limitations that readers must know are computed from the published rows.
"""

import html
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from skindx.core.text import markdown_environment, printable
from skindx.data.manifest import SPLITS, Issue
from skindx.data.origin import parse_licence
from skindx.data.publish.publish_formats import FORMATS
from skindx.data.publish.publish_settings import PublishedFacts, newest
from skindx.data.publish.published_rows import PublishedRow, card_features
from skindx.taxonomy import Taxonomy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


CARD = "README.md"
_SIZE_NAMES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (10**6, "100K<n<1M"))
# The names of licences that the hub knows.
_HUB = (
    r"cc0-1\.0|cc-by-(?:2\.0|2\.5|3\.0|4\.0)|cc-by-sa-(?:3\.0|4\.0)|cc-by-nc-(?:2\.0|3\.0|4\.0)"
    r"|cc-by-nc-sa-(?:2\.0|3\.0|4\.0)|mit|apache-2\.0"
)


def write_card(
    folder: Path,
    *,
    rows: Sequence[PublishedRow],
    issues: Sequence[Issue],
    taxonomy: Taxonomy,
    facts: PublishedFacts,
    plots: Sequence[str],
    limits: Sequence[str],
) -> None:
    """Write `folder`/README.md."""
    environment = markdown_environment("skindx.data.publish")
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
        stated={name: sum(r.licence_said == name for r in rows) for name in facts.stated_licences},
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
    folder: Path, published: Sequence[PublishedRow], taxonomy: Taxonomy, facts: PublishedFacts
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
    layout = FORMATS[facts.format]
    front["configs"] = [
        {
            "config_name": "default",
            "data_files": [
                {"split": split, "path": [layout.split_paths.format(split=split)]}
                for split in splits
            ],
        }
    ]
    if layout.sharded:
        sizes = _sizes(folder, published, splits)
        front["dataset_info"] = {"features": card_features(taxonomy.keys), **sizes}
    return front


def _sizes(
    folder: Path, published: Sequence[PublishedRow], splits: Sequence[str]
) -> dict[str, Any]:
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


def _front_licence(published: Sequence[PublishedRow]) -> dict[str, str]:
    names = {row.licence.lower() for row in published}
    if len(names) == 1 and re.fullmatch(_HUB, name := names.pop()):
        return {"license": name}
    return {"license": "other", "license_name": "per-picture", "license_link": "README.md"}


def _classes(rows: Sequence[PublishedRow], taxonomy: Taxonomy) -> list[dict[str, Any]]:
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


def _licences(rows: Sequence[PublishedRow]) -> list[dict[str, Any]]:
    words_of = {row.licence: row.licence_said for row in rows}
    counts = Counter(row.licence for row in rows)
    given = Counter(row.licence for row in rows if not row.withheld)
    lines = []
    for name, count in counts.most_common():
        licence = parse_licence(words_of[name])
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


def limits_of(rows: Sequence[PublishedRow], taxonomy: Taxonomy, facts: PublishedFacts) -> list[str]:
    """Return the known limits and biases of published rows as sentences."""
    published = [row for row in rows if not row.withheld]
    sentences = [
        "Labels are those of the sources. They were not compared with biopsies or patient records.",
        f"The classes, codes and urgencies of the taxonomy {taxonomy.name} are "
        f"{taxonomy.review_note}.",
        "The classes are a closed list: healthy skin and every other disease are missing, and a "
        "model trained on it gives them one of these names.",
        "Duplicates were found by hashes: other photographs of the same patient or lesion remain "
        "where no source tied them together.",
        "A published image was chosen by its licence, so the published part is not a random "
        "sample of what was found.",
    ]
    if not published:
        return sentences
    sentences += [
        _balance_sentence(published, taxonomy),
        _skin_sentence(published),
        _source_sentence(published),
    ]
    boxed = sum(row.boxes is not None for row in published)
    if boxed:
        sentences.append(f"{boxed} of {len(published)} images were annotated with lesion boxes.")
    if not facts.audited:
        sentences.append(
            "No program has looked for faces, text and intimate regions; some may be there."
        )
    return sentences


def _balance_sentence(rows: Sequence[PublishedRow], taxonomy: Taxonomy) -> str:
    counts = Counter(row.label for row in rows)
    most = max(taxonomy.classes, key=lambda disease: counts[disease.key])
    least = min(taxonomy.classes, key=lambda disease: counts[disease.key])
    largest, smallest = counts[most.key], counts[least.key]
    balance = (
        f"Every class has {largest} images."
        if largest == smallest
        else f"Classes are unequal: {most.name} has {largest} images, {least.name} {smallest}."
    )
    return f"{balance} How often a class occurs here says nothing of how common it is."


def _skin_sentence(rows: Sequence[PublishedRow]) -> str:
    types = Counter(row.skin_type for row in rows if row.skin_type)
    known = types.total()
    if not known:
        return (
            "The skin type of no image is known. Public dermatology images show mostly light "
            "skin: expect mistakes on dark skin, which this dataset cannot measure."
        )
    dark = types[5] + types[6]
    return (
        f"The skin type of {known} of {len(rows)} images is known; of these {dark} "
        f"({100 * dark / known:.0f} %) show the dark types V and VI. Expect more mistakes where "
        f"there are fewer images."
    )


def _source_sentence(rows: Sequence[PublishedRow]) -> str:
    (name, most), *remaining = Counter(row.source for row in rows).most_common()
    if not remaining:
        return f"All images come from one source ({name}), with its cameras and its patients."
    share = 100 * most / len(rows)
    return (
        f"{share:.0f} % of the images come from one source ({name}), with its cameras and its "
        f"patients; there are {len(remaining)} more."
    )


PLOTS = "plots"
_COLOURS = ("#1b4965", "#5fa8d3", "#cae9ff", "#e07a5f")
_WITHHELD = "#c9c9c9"


def write_plots(folder: Path, rows: Sequence[PublishedRow], taxonomy: Taxonomy) -> list[str]:
    """Write plots/*.png; return their names without suffix. Raises UserError without matplotlib."""
    (folder / PLOTS).mkdir()
    published = [row for row in rows if not row.withheld]
    figures: dict[str, Figure] = {}
    if published:
        figures |= {"classes": _plot_classes(published, taxonomy), "sizes": _plot_sizes(published)}
    if any(row.skin_type for row in published):
        figures["skin_types"] = _plot_skin_types(published)
    if rows:
        figures["licences"] = _plot_licences(rows)
    for name, figure in figures.items():
        # Without the program's name in it, so that equal plots are equal bytes.
        figure.savefig(folder / PLOTS / f"{name}.png", dpi=110, metadata={"Software": None})
    return list(figures)


def _figure(height: float) -> "tuple[Figure, Axes]":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _count_along(axis: "Axis") -> None:
    """Let an axis show whole numbers only: there is no half image."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=8, integer=True))


def _plot_classes(rows: Sequence[PublishedRow], taxonomy: Taxonomy) -> "Figure":
    counts = Counter((row.label, row.split) for row in rows)
    series: dict[str, list[int]] = {
        split: [counts[key, split] for key in taxonomy.keys] for split in SPLITS
    }
    colours = dict(zip(series, _COLOURS, strict=True))
    return _bars([disease.name for disease in taxonomy.classes], series, colours)


def _plot_licences(rows: Sequence[PublishedRow]) -> "Figure":
    names = sorted({row.licence for row in rows})
    counts = Counter((row.licence, bool(row.withheld)) for row in rows)
    series = {
        "published": [counts[name, False] for name in names],
        "withheld": [counts[name, True] for name in names],
    }
    return _bars(names, series, {"published": _COLOURS[0], "withheld": _WITHHELD})


def _bars(
    names: Sequence[str], series: Mapping[str, Sequence[int]], colours: Mapping[str, str]
) -> "Figure":
    """Draw one stacked horizontal bar a name, the first name on top, its total at the end."""
    figure, axes = _figure(0.32 * len(names) + 1.2)
    places, ends = range(len(names)), [0] * len(names)
    for title, values in series.items():
        if any(values):
            axes.barh(places, values, left=ends, color=colours[title], label=title, height=0.7)
            ends = [end + value for end, value in zip(ends, values, strict=True)]
    for place, end in enumerate(ends):
        axes.annotate(
            str(end), (end, place), xytext=(4, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(places, names, parse_math=False)
    axes.set_xlabel("images")
    _count_along(axes.xaxis)
    axes.set_xlim(0, 1.1 * max(ends))
    axes.set_ylim(len(names) - 0.4, -0.6)
    figure.legend(frameon=False, loc="outside upper right", ncols=len(series))
    return figure


def _plot_sizes(rows: Sequence[PublishedRow]) -> "Figure":
    figure, axes = _figure(2.8)
    sides = [min(row.width, row.height) for row in rows]
    axes.hist(sides, bins=40, range=(0, 1.05 * max(sides)), color=_COLOURS[0])
    _count_along(axes.yaxis)
    axes.set_xlabel("shorter side, pixels")
    axes.set_ylabel("images")
    return figure


def _plot_skin_types(rows: Sequence[PublishedRow]) -> "Figure":
    figure, axes = _figure(2.8)
    counts = Counter(row.skin_type for row in rows)
    kinds = (*range(1, 7), None)
    values = [counts[kind] for kind in kinds]
    names = ["I", "II", "III", "IV", "V", "VI", "not known"]
    bars = axes.bar(names, values, color=[_COLOURS[0]] * 6 + [_WITHHELD])
    axes.bar_label(bars)
    axes.set_xlabel("Fitzpatrick skin type, where a person said so")
    axes.set_ylabel("images")
    axes.margins(y=0.12)
    _count_along(axes.yaxis)
    return figure
