"""A bundle's evaluation on README and page: histology first, what is served, what holds elsewhere.

All figures of a page are of one bundle: `one_bundle` refuses the digests of two.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blocks.texts import (
    Load,
    bench_machine,
    cell,
    complement,
    number,
    origin_of,
    refused,
    shown,
    table,
    whole,
)  # fmt: skip
from skindx.evaluation.figures import bounds, change, points
from skindx.evaluation.questions import TARGET_MISSED
from skindx.metrics import Interval

Row = Mapping[str, Any]

_AWAY = ("auroc", "urgent_sensitivity", "urgent_specificity", "calibration_error", "refused")
"""What of other cameras README has."""
_REST = ("urgent_sensitivity", "urgent_specificity")
"""Shares of right answers, of which the mistakes are printed."""
_STEPS = {
    "urgent": "urgent", "soon": "soon", "routine": "routine", "unknown": "not known",
    "none": "refused, no answer",
}  # fmt: skip
_DIGEST = re.compile(r"\b[Bb]undle `?([0-9a-f]{12})")
_MISTAKES = 3
_STATED = ": calibration error, mix stated"
_OLDER = "The evaluation of an older version does not tell images with histology apart."


def one_bundle(text: str, where: str) -> None:
    """Raise SystemExit for a page with figures of two bundles."""
    if len(found := sorted(set(_DIGEST.findall(text)))) > 1:
        raise SystemExit(
            f"{where} has figures of {len(found)} bundles, {', '.join(found)}; render every block "
            "from one release."
        )


def origin_of_release(origin: Mapping[str, Any], networks: int = 0) -> str:
    """Return the bundle's digest, how many networks it has, the machine, the date and versions."""
    many = f" of {networks} network{'s' if networks > 1 else ''}" if networks else ""
    return f"Bundle `{origin['bundle_digest'][:12]}`{many}; {origin_of(origin)}"


def headline(
    load: Load,
    *,
    file: str,
    name: str = "HAM10000",
    other: str = "",
    unknown: str = "",
    detectors: str = "",
    folder: str = "",
) -> str:
    """Return README's table of a bundle: how often right, which mistakes, and what elsewhere.

    `file`: the evaluation of its test split; `other`: that of other cameras; `unknown`: what the
    `detectors` refuse of classes that were left out; `folder`: what `recompute` takes.
    """
    written = load(file)
    parts = written.get("spectrum") or ()
    columns = [parts[0], parts[-1]] if parts[1:] else list(parts)
    rows = _right(written, columns)
    rest = [*_probabilities(written), *_no_answer(written)]
    if other:
        rest += _away_rows(load(other))
    if unknown:
        rest.append(_untaught(load(unknown)["models"][detectors]["left_out"]))
    rows += [[title, *[""] * (max(len(columns), 1) - 1), text] for title, text in rest]
    head = f"{name}: {written['pictures']} test images of {written['groups']} groups"
    names = [f"{part['name']}: {part['n']} ({part['groups']})" for part in columns] or ["all"]
    return "\n".join(
        [
            table([f"{head}; 95 % intervals", *names], rows),
            "",
            *_not_useful(written),
            *_not_useful(load(other) if other else {}, "Not useful on images by other cameras."),
            origin_of_release(written["origin"], len(written.get("members", ()))) + again(folder),
        ]
    )


def again(folder: str) -> str:
    """Return the command that makes every figure of a release again."""
    return f" `skindx recompute {folder}` makes every figure again." if folder else ""


def spectrum(load: Load, *, file: str, folder: str = "") -> str:
    """Return images that histology confirmed and others apart, and what is served of all."""
    written = load(file)
    parts = written.get("spectrum") or ()
    if not parts:
        return _OLDER
    rows = list(_spectrum_rows(parts).values())
    kinds = written["served"][:3]
    served = table(
        ["next step as served", *(row["name"] for row in kinds)],
        [
            ["images (groups)", *(f"{row['n']} ({row['groups']})" for row in kinds)],
            *(
                [text, *(cell(row["rates"][step]) for row in kinds)]
                for step, text in _STEPS.items()
            ),
            ["no condition named", *(cell(row["abstained_rate"]) for row in kinds)],
        ],
    )
    return "\n".join(
        [
            table(["", *(part["name"] for part in parts)], rows),
            "",
            served,
            "",
            *_not_useful(written),
            origin_of_release(written["origin"]) + again(folder),
        ]
    )


def targets(load: Load, *, file: str, other: str, stated: str) -> str:
    """Return what the project asked of the released bundle, and whether it was reached.

    `stated`: what `skindx bench honesty released` wrote of the same bundle.
    """
    written, away, mix = load(file), load(other), load(stated)
    if mix["models"]["bundle"]["digest"] != written["origin"]["bundle_digest"]:
        raise SystemExit(f"{stated} is of another bundle; run `skindx bench honesty released`.")
    ensemble = written["ensemble"]
    urgent = next(one for one in written["questions"] if one["key"] == "urgent_risk")
    curve = next(row["figure"] for row in urgent["triage"] if row["at"] == TARGET_MISSED)
    changed = {one["key"]: one["external"] for one in away["elsewhere"]["changes"]}
    (there,) = (figure for key, figure in mix["figures"].items() if key.endswith(_STATED))
    low, high = there["spread"]
    called = f"other images called urgent where {whole(TARGET_MISSED)} of urgent ones are missed"
    rows = [
        _asked("top-1", ensemble["top1"], least=0.85),
        _asked(
            "balanced accuracy by the balanced rule", ensemble["balanced_rule_accuracy"], least=0.75
        ),
        _asked("AUROC of urgent", urgent["auroc"], least=0.94, percent=False),
        _asked(f"{called}, by the best threshold of the curve", curve, most=0.2),
        _asked("other cameras: AUROC", changed["auroc"], least=0.8, percent=False),
        _asked("other cameras: refused as out of distribution", changed["refused"], most=0.2),
        _asked(
            "other cameras: calibration error, their mix stated",
            {"value": there["value"], "low": low, "high": high},
            most=0.1,
            percent=False,
        ),
    ]
    return "\n".join(
        [
            table(["on test, by one look", "asked", "measured", ""], rows),
            "",
            origin_of_release(written["origin"]),
        ]
    )


def _asked(
    what: str, own: Mapping[str, float], *, least: float = 0, most: float = 0, percent: bool = True
) -> list[str]:
    limit = least or most
    reached = own["value"] >= least if least else own["value"] <= most
    inside = own["low"] <= limit <= own["high"]
    text = "reached" if reached else "**missed**"
    if inside:
        text += "; the interval holds the limit"
    bound = f"at {'least' if least else 'most'} {whole(limit) if percent else f'{limit:.2f}'}"
    return [what, bound, cell(own) if percent else number(own), text]


def refusals(load: Load, *, file: str) -> str:
    """Return how many of each kind of picture the released bundle refuses, and by which gate."""
    written = load(file)
    gates = written["models"]["refusals"]
    names = sorted({gate for counts in gates.values() for gate in counts})
    rows = [
        [name, str(figure["n"]), shown(figure), *(str(counts.get(gate, 0)) for gate in names)]
        for name, counts in gates.items()
        for figure in [written["figures"][f"refused: {name}"]]
    ]
    headings = ["pictures", "n", "refused", *(f"by {gate.replace('_', ' ')}" for gate in names)]
    digest = written["models"]["bundle"]["digest"][:12]
    return "\n".join(
        [
            table(headings, rows),
            "",
            *written["notes"],
            "",
            f"Bundle `{digest}`; {bench_machine(written)}",
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


def _not_useful(written: Row, title: str = "Not useful yet.") -> list[str]:
    reasons = written.get("not_useful") or ()
    return [f"**{title}** {' '.join(reasons)}", ""] if reasons else []


def _right(written: Row, columns: Sequence[Row]) -> list[list[str]]:
    """Return how often it is right and what it misses, with histology and of all images."""
    ensemble, width = written["ensemble"], max(len(columns), 1)
    balanced = cell(ensemble["balanced_accuracy"])
    if ensemble.get("balanced_rule_accuracy"):
        balanced += (
            f"; by the balanced rule {cell(ensemble['balanced_rule_accuracy'])}, top-1 then "
        )
        balanced += cell(ensemble["balanced_rule_top1"])
    averaged = ["right, averaged over classes (balanced accuracy)", *[""] * (width - 1), balanced]
    if not columns:
        return [["the likeliest class is right (top-1)", cell(ensemble["top1"])], averaged]
    rows = _spectrum_rows(columns)
    names = {one["key"]: one["name"] for one in written["classes"]}
    mistakes = "; ".join(
        f"{names.get(one['truth'], one['truth'])} called "
        f"{names.get(one['predicted'], one['predicted'])} {cell(one['rate'])}"
        for one in (written.get("confusions") or ())[:_MISTAKES]
    )
    confused = [
        "commonest mistakes, of all images of the true class",
        *[""] * (width - 1),
        mistakes,
    ]
    return [rows["top1"], rows["majority"], averaged, *([confused] if mistakes else []),
            *(rows[key] for key in ("urgent_auroc", "urgent", "others"))]  # fmt: skip


def _spectrum_rows(parts: Sequence[Row]) -> dict[str, list[str]]:
    """Return the rows that stand for images of each kind of confirmation apart."""

    def row(text: str, of: Callable[[Row], str]) -> list[str]:
        return [text, *map(of, parts)]

    def urgent(part: Row) -> str:
        missed = part["urgent"]
        return f"{missed['missed']} of {missed['n']}: {cell(missed['rate'])}" if missed else "none"

    def others(part: Row) -> str:
        raised = part["others"]
        return f"{raised['raised']} of {raised['n']}: {cell(raised['rate'])}" if raised else "none"

    return {
        "images": row("images (groups)", lambda part: f"{part['n']} ({part['groups']})"),
        "top1": row("the likeliest class is right (top-1)", lambda part: cell(part["top1"])),
        "majority": row(
            "always naming the commonest class would be right",
            lambda part: f"{part['majority']['name']} {cell(part['majority']['top1'])}",
        ),
        "auroc": row("AUROC, mean over classes", lambda part: number(part["auroc"])),
        "urgent_auroc": row(
            "urgent told from the others (AUROC)", lambda part: number(part["urgent_auroc"])
        ),
        "urgent": row(
            "urgent images that it misses: they are refused, or not called urgent", urgent
        ),
        "others": row("other images that it calls urgent", others),
    }


def _probabilities(written: Row) -> list[tuple[str, str]]:
    """Return whether probabilities and sets hold."""
    ensemble = written["ensemble"]
    texts = [f"calibration error {number(ensemble['calibration_error'])}"]
    if by_class := ensemble.get("classwise_calibration_error"):
        texts.append(f"class by class {number(by_class)}")
    texts += [
        f"{question['name']}, observed over expected, {number(question['observed_over_expected'])}"
        for question in written.get("questions", ())
        if question.get("observed_over_expected") and question["key"] != "soon_risk"
    ]
    rows = [("what its probabilities are worth", "; ".join(texts))]
    if sets := written["sets"]:
        level = f"the sets for {whole(sets['level'])} hold the true class"
        rows.append((level, cell(sets["coverage"])))
    return rows


def _no_answer(written: Row) -> list[tuple[str, str]]:
    """Return how often it gives no answer; of an older evaluation the errors of its threshold."""
    if served := written.get("served"):
        return [("no answer", _unanswered(served[2]))]
    rows = []
    if risk := written.get("urgent_risk"):
        level = next(row for row in risk["levels"] if row["miss_rate"] == risk["default"])
        missed = f"urgent images that it misses (target: {whole(level['miss_rate'])})"
        rows += [
            (missed, f"of {level['misses']['n']}: {cell(level['misses']['rate'])}"),
            ("other images that it calls urgent", cell(level["false_alarms"]["rate"])),
        ]
    if written.get("ood"):
        rows.append(("refused as out of distribution", cell(written["ood"]["refused"])))
    return rows


def _away_rows(written: Row) -> list[tuple[str, str]]:
    """Return the figures of other cameras, whose calibration is as it is, as those of its own."""
    found, images = _away(written)
    rows = [{"auroc": "AUROC, mean over classes", "calibration_error": "calibration error"}]
    served = written.get("served")
    if not served:
        rows += [
            {"urgent_sensitivity": "urgent missed", "urgent_specificity": "others called urgent"},
            {"refused": "refused as out of distribution"},
        ]
    texts = [
        "; ".join(f"{words} {found[key]}" for key, words in row.items() if key in found)
        for row in rows
    ]
    if served:
        urgent, others, every = served[:3]
        missed = urgent["n"] - urgent["steps"]["urgent"]
        texts += [
            f"urgent missed, {missed} of {urgent['n']}, {urgent['steps']['none']} of them refused: "
            f"{cell(complement(urgent['rates']['urgent']))}; others called urgent, "
            f"{others['steps']['urgent']} of {others['n']}: {cell(others['rates']['urgent'])}",
            _unanswered(every),
        ]
    return [(f"{images} images by other cameras", text) for text in texts if text]


def _unanswered(every: Row) -> str:
    named = f"no condition named {cell(every['abstained_rate'])}"
    return f"refused {cell(every['rates']['none'])}; {named}"


def _untaught(left_out: Mapping[str, Row]) -> tuple[str, str]:
    """Return how rarely and how often a disease is refused that a network was not taught."""
    ranked = sorted(left_out.values(), key=lambda row: row["refused"][0])
    least, most = (refused(row) for row in (ranked[0], ranked[-1]))
    title = f"images of an untaught disease that it refuses ({len(ranked)} classes, each left out)"
    return title, f"from {least} to {most} by class"


def _away(written: Row) -> tuple[dict[str, str], int]:
    """Return the figures of other cameras in words, and the number of images."""
    if changes := (written.get("elsewhere") or {}).get("changes"):
        found = {
            one["key"]: (complement(one["external"]) if one["key"] in _REST else one["external"],
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
