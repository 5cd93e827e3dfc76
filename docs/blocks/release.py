"""A bundle's evaluation on README and page: histology first, what is served, what holds elsewhere.

All figures of a page are of one bundle: `one_bundle` refuses the digests of two.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blocks.texts import Load, cell, number, origin_of, shown, table, whole
from skindx.evaluation.figures import bounds, change, points
from skindx.metrics import Interval

Row = Mapping[str, Any]

_AWAY = {
    "auroc": "AUROC, mean over classes",
    "urgent_sensitivity": "urgent images that are missed",
    "urgent_specificity": "other images called urgent",
    "calibration_error": "calibration error",
    "refused": "refused as out of distribution",
}
_REST = ("urgent_sensitivity", "urgent_specificity")
"""Shares of right answers, of which the mistakes are printed."""
_STEPS = {
    "urgent": "urgent", "soon": "soon", "routine": "routine", "unknown": "not known",
    "none": "refused, no answer",
}  # fmt: skip
_DIGEST = re.compile(r"\b[Bb]undle `?([0-9a-f]{12})")
_MISTAKES = 3
_OLDER = "The evaluation of an older version does not tell images with histology apart."


def one_bundle(text: str, where: str) -> None:
    """Raise SystemExit for a page with figures of two bundles."""
    if len(found := sorted(set(_DIGEST.findall(text)))) > 1:
        raise SystemExit(
            f"{where} has figures of {len(found)} bundles, {', '.join(found)}; render every block "
            "from one release."
        )


def origin_of_release(origin: Mapping[str, Any]) -> str:
    """Return the bundle's digest, the machine, the date and the versions."""
    return f"Bundle `{origin['bundle_digest'][:12]}`; {origin_of(origin)}"


def headline(load: Load, *, file: str, name: str = "HAM10000", other: str = "") -> str:
    """Return README's table of a bundle: how often it is right, on what, and elsewhere.

    `file`: the evaluation of its test split; `other`: that of other cameras.
    """
    written = load(file)
    parts = written.get("spectrum") or ()
    rows = _spectrum_rows(written, parts)
    width = max(len(parts), 1)
    for title, text in (*_probabilities(written), *_served(written), *_guarantees(written)):
        rows.append([title, *[""] * (width - 1), text])
    if other:
        away, images = _away(load(other))
        rows += [
            [f"{images} images by other cameras: {text}", *[""] * (width - 1), away[key]]
            for key, text in _AWAY.items()
            if key in away
        ]
    head = f"{name}: {written['pictures']} test images of {written['groups']} groups"
    headings = [f"{head}; 95 % intervals", *(part["name"] for part in parts)]
    lines = table(headings if parts else [*headings, "all"], rows)
    return "\n".join([lines, "", *_not_useful(written), origin_of_release(written["origin"])])


def spectrum(load: Load, *, file: str) -> str:
    """Return images that histology confirmed and others apart, and what is served of all."""
    written = load(file)
    parts = written.get("spectrum") or ()
    if not parts:
        return _OLDER
    rows = _spectrum_rows(written, parts)
    served = table(
        ["next step as served", *(row["name"] for row in written["served"])],
        [
            ["images (groups)", *(f"{row['n']} ({row['groups']})" for row in written["served"])],
            *(
                [text, *(cell(row["rates"][step]) for row in written["served"])]
                for step, text in _STEPS.items()
            ),
            ["no condition named", *(cell(row["abstained_rate"]) for row in written["served"])],
        ],
    )
    return "\n".join(
        [
            table(["", *(part["name"] for part in parts)], rows),
            "",
            served,
            "",
            *_not_useful(written),
            origin_of_release(written["origin"]),
        ]
    )


def classes(load: Load, *, file: str) -> str:
    """Return each class's images, groups, share found, and observed over expected."""
    written = load(file)
    if not written.get("spectrum"):
        return _OLDER
    rows = [
        [
            one["name"],
            f"{one['n']} ({one['groups']})",
            cell(one["sensitivity"]),
            cell(one["specificity"]),
            number(one["observed_over_expected"]),
        ]
        for one in written["classes"]
    ] + [
        [
            f"{one['name']}, all classes of it",
            f"{one['n']} ({one['groups']})",
            "",
            "",
            number(one["observed_over_expected"]),
        ]
        for one in written["questions"]
    ]
    headings = ["class", "images (groups)", "found", "specificity", "observed over expected"]
    note = (
        "*Observed over expected*: images of the class over the sum of its probabilities; 1 is "
        "calibrated, above 1 the class is commoner than the probabilities say."
    )
    return "\n".join([table(headings, rows), "", note, "", origin_of_release(written["origin"])])


def _not_useful(written: Row) -> list[str]:
    reasons = written.get("not_useful") or ()
    return [f"**Not useful yet.** {' '.join(reasons)}", ""] if reasons else []


def _spectrum_rows(written: Row, parts: Sequence[Row]) -> list[list[str]]:
    """Return the rows that stand for histology, other ways and all apart."""
    if not parts:
        return [["top-1", cell(written["ensemble"]["top1"])]]

    def row(text: str, of: Callable[[Row], str]) -> list[str]:
        return [text, *map(of, parts)]

    def urgent(part: Row) -> str:
        missed = part["urgent"]
        return f"{missed['missed']} of {missed['n']}: {cell(missed['rate'])}" if missed else "none"

    def others(part: Row) -> str:
        raised = part["others"]
        return f"{raised['raised']} of {raised['n']}: {cell(raised['rate'])}" if raised else "none"

    return [
        row("images (groups)", lambda part: f"{part['n']} ({part['groups']})"),
        row(
            "share of the commonest class",
            lambda part: f"{part['majority']['name']} {cell(part['majority']['top1'])}",
        ),
        row("top-1", lambda part: cell(part["top1"])),
        row("AUROC, mean over classes", lambda part: number(part["auroc"])),
        row("AUROC of urgent", lambda part: number(part["urgent_auroc"])),
        row("urgent images that are missed, as served", urgent),
        row("other images called urgent, as served", others),
    ]


def _probabilities(written: Row) -> list[tuple[str, str]]:
    """Return both decision rules, the commonest mistakes, and whether probabilities hold."""
    ensemble = written["ensemble"]
    rows = [("balanced accuracy by the likeliest class", cell(ensemble["balanced_accuracy"]))]
    if ensemble.get("balanced_rule_accuracy"):
        by_rule = f"{cell(ensemble['balanced_rule_accuracy'])}; top-1 "
        rows.append(
            (
                "balanced accuracy by the balanced rule",
                by_rule + cell(ensemble["balanced_rule_top1"]),
            )
        )
    names = {one["key"]: one["name"] for one in written["classes"]}
    mistakes = [
        f"{names.get(one['truth'], one['truth'])} called "
        f"{names.get(one['predicted'], one['predicted'])} {one['n']}"
        for one in (written.get("confusions") or ())[:_MISTAKES]
    ]
    if mistakes:
        rows.append(("commonest mistakes, images", "; ".join(mistakes)))
    if ensemble.get("classwise_calibration_error"):
        error = number(ensemble["classwise_calibration_error"])
        rows.append(("calibration error, class by class", error))
    else:
        rows.append(("calibration error", number(ensemble["calibration_error"])))
    measured = [
        f"{question['name']} {number(question['observed_over_expected'])}"
        for question in written.get("questions", ())
        if question.get("observed_over_expected") and question["key"] != "soon_risk"
    ]
    if measured:
        rows.append(("observed over expected", "; ".join(measured)))
    return rows


def _served(written: Row) -> list[tuple[str, str]]:
    """Return the next steps of all images, abstentions and refusals."""
    if not (served := written.get("served")):
        risk = written.get("urgent_risk")
        if not risk:
            return []
        level = next(row for row in risk["levels"] if row["miss_rate"] == risk["default"])
        target = whole(level["miss_rate"])
        return [
            (
                f"{level['misses']['n']} urgent images, missed (target: {target})",
                cell(level["misses"]["rate"]),
            ),
            ("other images called urgent", cell(level["false_alarms"]["rate"])),
        ]
    every = served[-1]
    steps = "; ".join(f"{text} {every['steps'][step]}" for step, text in _STEPS.items())
    return [
        ("next steps as served, images", steps),
        ("no condition named with confidence", cell(every["abstained_rate"])),
        ("refused", cell(every["rates"]["none"])),
    ]


def _guarantees(written: Row) -> list[tuple[str, str]]:
    rows = []
    if sets := written["sets"]:
        text = f"sets for {whole(sets['level'])} hold the true class"
        rows.append((text, cell(sets["coverage"])))
    if not written.get("served") and written.get("ood"):
        rows.append(("test images refused by the OOD check", cell(written["ood"]["refused"])))
    return rows


def _away(written: Row) -> tuple[dict[str, str], int]:
    """Return the figures of other cameras in words, and the number of images."""
    if changes := (written.get("elsewhere") or {}).get("changes"):
        found = {
            one["key"]: (_rest(one["external"]) if one["key"] in _REST else one["external"],
                         one["unit"] == "percent")
            for one in changes
        }  # fmt: skip
        texts = {
            key: cell(own) if percent else number(own) for key, (own, percent) in found.items()
        }
        return texts, written["pictures"]
    figures = written["figures"]
    texts = {}
    for key in _AWAY:
        figure = figures[f"{key}_external"]
        if key in _REST:
            low, high = figure["spread"]
            figure = {**figure, "value": 100 - figure["value"], "spread": [100 - high, 100 - low]}
        texts[key] = shown(figure)
    return texts, figures["auroc_external"]["n"]


def _rest(own: Mapping[str, float]) -> dict[str, float]:
    return {"value": 1 - own["value"], "low": 1 - own["high"], "high": 1 - own["low"]}


def changes(load: Load, *, file: str) -> str:
    """Return the figures of other cameras beside those at home, at unchanged thresholds."""
    written = load(file)
    found = written["elsewhere"]
    rows = [_sides(one["title"], one, one["unit"] == "percent") for one in found["changes"]]
    for one in found["classes"]:
        counts = f"{one['internal_images']} and {one['external_images']} images"
        rows.append(_sides(f"{one['name']}: AUROC ({counts})", one["auroc"], False))
        rows.append(_sides(f"{one['name']}: found ({counts})", one["sensitivity"], True))
    absent = f" Without an image there: {', '.join(found['absent'])}." if found["absent"] else ""
    few = ", ".join(f"{name} {here} and {there}" for name, (here, there) in found["few"].items())
    small = f" Under {found['fewest']} images here or there: {few}." if few else ""
    headings = ["thresholds unchanged", "internal", "external", "change"]
    note = f"{written['pictures']} images of {written['groups']} groups.{small}{absent}"
    return "\n".join([table(headings, rows), "", note, "", origin_of_release(written["origin"])])


def _sides(title: str, one: Row, percent: bool) -> list[str]:
    write = cell if percent else number
    own = Interval(*(one["change"][key] for key in ("value", "low", "high")))
    text = points(own.value) if percent else change(own.value)
    moved = f"{text} {bounds(own, 'points' if percent else 'change')}"
    return [title, write(one["internal"]), write(one["external"]), moved]
