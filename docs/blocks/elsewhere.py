"""Answers away from the images of a training: other datasets, unknown diseases, drift."""

from collections.abc import Mapping
from typing import Any

from blocks.real_skin import POOLS, side_of
from blocks.texts import Load, bench_machine, digits, shown, table
from skindx.evaluation.elsewhere import TITLES
from skindx.evaluation.figures import first_upper

_MOST_ERROR = 0.08
"""Calibration error that are the project's target, with 100 local images."""
_FACTS = {
    "balanced": "balanced accuracy",
    "top1": "top-1",
    "auroc": "AUROC",
    "melanoma_auroc": "AUROC of melanoma",
    "log_loss": "log loss taken off",
}
_LEAST_RUN, _MOST_DELAY = 5000, 200
"""Photos to a false alarm, and from a shift to its alarm, that are the project's target."""


def external(load: Load, *, file: str = "external.json") -> str:
    """Return the changes at unchanged thresholds, and what local images bring back."""
    written = load(file)
    figures = written["figures"]
    rows: list[list[str]] = []
    sides: dict[int, list[str]] = {1: [], -1: [], 0: []}
    for key in (name.removesuffix("_change") for name in figures if name.endswith("_change")):
        one, other, difference = (
            figures[f"{key}_{side}"] for side in ("internal", "external", "change")
        )
        if difference["unit"] == "%":
            difference = {**difference, "unit": "points"}
        rows.append([_title(key), shown(one), shown(other), shown(difference, signed=True)])
        sides[side_of(difference["spread"])].append(_title(key))
    higher, lower, neither = ("; ".join(sides[side]) or "nothing" for side in (1, -1, 0))
    parts = []
    if rows:
        headings = ["thresholds unchanged", "internal", "external", "change"]
        sentence = f"Higher there: {higher}. Lower there: {lower}. Not shown: {neither}."
        parts = [table(headings, rows), "", sentence, ""]
    sizes = sorted({int(name.rpartition("_")[2]) for name in figures if "_after_" in name})
    last = sizes[-1]
    keys = [name.split("_after_")[0] for name in figures if name.endswith(f"_after_{last}")]
    headings = ["", "as trained", *(f"{size} local images" for size in sizes)]
    rows = [
        [_title(key), *(shown(figures[name]) for name in names)]
        for key in keys
        for names in [[f"{key}_before_{last}", *(f"{key}_after_{size}" for size in sizes)]]
    ]
    parts += [table(headings, rows), ""]
    if error := figures.get(f"calibration_error_after_{last}"):
        reached = "reached" if error["value"] <= _MOST_ERROR else "**missed**"
        parts += [f"Asked: a calibration error of {_MOST_ERROR} with {last} images: {reached}.", ""]
    notes = [text for note in written["notes"] for text in (f"{first_upper(note)}.", "")]
    return "\n".join([*parts, *notes, bench_machine(written)])


def _title(key: str) -> str:
    """Return the title of a figure, or of a class's figure as in `auroc_Melanoma`."""
    if key in TITLES:
        return TITLES[key][0]
    kind, _, name = key.partition("_")
    return f"{'AUROC' if kind == 'auroc' else kind} of {name.replace('_', ' ')}"


def metadata(load: Load, *, file: str = "metadata.json") -> str:
    """Return what age, sex and place add to photos, for each set of networks."""
    written = load(file)
    figures, parts = written["figures"], []
    end = "_balanced_without"
    for pool in (key.removesuffix(end) for key in figures if key.endswith(end)):
        rows: list[list[str]] = []
        sides: dict[int, list[str]] = {1: [], -1: [], 0: []}
        for key, title in _FACTS.items():
            gain = figures[f"{pool}_{key}_gain"]
            cells = [figures.get(f"{pool}_{key}_{name}") for name in ("without", "known")]
            texts = [shown(own) if own else "" for own in cells]
            rows.append([title, *texts, shown(gain, signed=True)])
            sides[side_of(gain["spread"])].append(title)
        for key in (f"{pool}_{field}_log_loss_gain" for field in ("age", "sex", "site")):
            if key in figures:
                field = key.removeprefix(f"{pool}_").split("_")[0]
                rows.append(
                    [
                        f"log loss taken off by {field} alone",
                        "",
                        "",
                        shown(figures[key], signed=True),
                    ]
                )
        note = next(note for note in written["notes"] if note.startswith(f"{pool}: "))
        title = POOLS.get(pool, pool)
        parts += [table([title, "photos alone", "and what is known", "gain"], rows), ""]
        gain, loss, neither = ("; ".join(sides[side]) or "nothing" for side in (1, -1, 0))
        parts += [f"Gains: {gain}. Loses: {loss}. Not shown: {neither}.", ""]
        parts += [f"{first_upper(note.removeprefix(f'{pool}: '))}.", ""]
    return "\n".join([*parts, written["notes"][0], "", bench_machine(written)])


def unknowns(load: Load, *, file: str = "unknowns.json") -> str:
    """Return how well each detector separates left-out classes and other cameras."""
    written = load(file)
    figures = written["figures"]
    names = [key.removesuffix(", isic9") for key in figures if key.endswith(", isic9")]
    names.sort(key=lambda name: -figures[f"{name}, left-out classes"]["value"])
    rows = []
    for name in names:
        cells = [figures[f"{name}, {what}"] for what in ("left-out classes", "isic9")]
        texts = [
            f"{own['value']:.3f} [{own['spread'][0]:.3f}, {own['spread'][1]:.3f}]" for own in cells
        ]
        rows.append([name.replace("+", " + "), *texts])
    headings = ["detector", "AUROC of left-out classes: mean [least, greatest]", "of other cameras"]
    return "\n".join([table(headings, rows), "", *written["notes"], "", bench_machine(written)])


def drift(load: Load, *, file: str = "drift.json") -> str:
    """Return after how many photos each shift is noticed, and what a false alarm costs."""
    written = load(file)
    figures = written["figures"]
    shifts = [key.removeprefix("delay_") for key in figures if key.startswith("delay_")]
    rows = [
        [
            name.replace("_", " "),
            *(_photos(figures[f"{key}_{name}"]) for key in ("delay", "named", "dated")),
        ]
        for name in shifts
    ]
    late = [name for name in shifts if figures[f"delay_{name}"]["value"] > _MOST_DELAY]
    length = figures["run_length"]
    reached = "reached" if length["value"] >= _LEAST_RUN else "**missed**"
    sentences = (
        f"Without a shift the first false alarm comes after {_photos(length)} photos in the mean "
        f"(target: {_LEAST_RUN:,}, {reached})."
        f" The target was at most {_MOST_DELAY} photos to the alarm "
        f"in the median: {len(shifts) - len(late)} of {len(shifts)} shifts reach it"
        + (f", not {', '.join(late).replace('_', ' ')}." if late else ".")
    )
    headings = [
        "shift",
        "photos to the alarm",
        "alarms that name it, %",
        "error of its date, photos",
    ]
    notes = [text for note in written["notes"] for text in (note, "")]
    return "\n".join([table(headings, rows), "", sentences, "", *notes, bench_machine(written)])


def _photos(figure: Mapping[str, Any]) -> str:
    low, high = figure["spread"]
    return f"{digits(figure['value'])} [{digits(low)}, {digits(high)}]"
