"""Networks, ensembles and hosts on real skin, and README's headline: what the figures say, by rule.

A gain or a loss is an interval on one side of 0; everything else is named as not shown.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from blocks.texts import Load, bench_machine, cell, number, origin_of, shown, table, whole
from skindx.evaluation.figures import bounds, first_upper, points
from skindx.metrics import Interval

Figures = Mapping[str, Mapping[str, Any]]

_MEASURES = {
    "balanced": "balanced accuracy",
    "balanced_even": "balanced accuracy, all classes taken as equally frequent",
    "top1": "top-1",
    "auroc": "AUROC",
    "log_loss": "log loss (low is good)",
}
_LOW_IS_BETTER = ("log_loss",)
_TARGET_GAIN = 2
"""Points of balanced accuracy over the better member that are the project's target."""
_ELSEWHERE = {
    "auroc_external": "AUROC, mean over classes",
    "urgent_sensitivity_external": "urgent ones called urgent",
    "calibration_error_external": "calibration error",
    "refused_external": "refused by the OOD check",
}
_NOTHING: Mapping[str, float] = {}
_POOLS = {
    "frozen": "Linear heads on frozen networks, out of fold",
    "folds": "Frozen and fine-tuned networks, out of fold",
    "trained": "Fine-tuned networks, out of fold",
    "split": "Fine-tuned networks, one split",
}
_RIVALS = {"better": "the better member", "same_cost": "one network of its cost"}


def networks(load: Load, *, file: str) -> str:
    """Return a row for each network, the best balanced accuracy first."""
    written = load(file)
    columns = {key: _MEASURES[key] for key in ("top1", "balanced", "auroc")} | {
        "melanoma_auroc": "AUROC of melanoma",
        "melanoma_pauc_80": "above 80 % sensitivity",
        "melanoma_pauc_88": "above 88 %",
    }
    rows = dict(sorted(written["models"].items(), key=lambda item: -item[1]["balanced"]["value"]))
    columns = {key: text for key, text in columns.items() if key in next(iter(rows.values()))}
    headings = ["network", "px", "million parameters", "GFLOP", "images/s", *columns.values()]
    lines = []
    for name, row in rows.items():
        costs = [
            str(row["size"]),
            f"{row['parameters'] / 1e6:.1f}",
            f"{row['flops'] / 1e9:.2f}",
            _speed(row["images_per_s"]),
        ]
        figures = [
            cell(row[key]) if key in ("top1", "balanced") else number(row[key]) for key in columns
        ]
        lines.append([f"{name} ({row['trained']})", *costs, *figures])
    counts = ", ".join(sorted({str(row["images"]) for row in rows.values()}))
    note = f"Judged on {counts} images. {written['notes'][0]}"
    return "\n".join([table(headings, lines), "", note, "", bench_machine(written)])


def ensembles(load: Load, *, file: str, target: Mapping[str, float] = _NOTHING) -> str:
    """Return the ensembles beside single networks, and in words what they gain.

    `target`: the percent that are the ensemble's target, by figure.
    """
    written = load(file)
    figures, parts = written["figures"], []
    for pool, name in _POOLS.items():
        if f"{pool}_ensemble_balanced" not in figures:
            continue
        headings = [
            name,
            "ensemble",
            *_RIVALS.values(),
            *(f"− {text}" for text in _RIVALS.values()),
        ]
        keys = ["ensemble", *_RIVALS, *(f"ensemble_minus_{rival}" for rival in _RIVALS)]
        lines = [
            [text, *(_figure(figures, f"{pool}_{key}_{measure}") for key in keys)]
            for measure, text in _MEASURES.items()
        ]
        chosen = next(note for note in written["notes"] if note.startswith(f"{pool}: "))
        parts += [table(headings, lines), "", _gains(figures, pool, target), ""]
        parts += [f"Chosen: {chosen.removeprefix(f'{pool}: ')}.", ""]
    return "\n".join([*parts, bench_machine(written)])


def _gains(figures: Figures, pool: str, target: Mapping[str, float]) -> str:
    """Return what the ensemble gains and loses, and whether it reaches its target."""
    sentences = []
    for rival, name in _RIVALS.items():
        sides: dict[int, list[str]] = {1: [], -1: [], 0: []}
        for measure, text in _MEASURES.items():
            side = side_of(figures[f"{pool}_ensemble_minus_{rival}_{measure}"]["spread"])
            sides[-side if measure in _LOW_IS_BETTER else side].append(text)
        gain, loss, neither = ("; ".join(sides[side]) or "nothing" for side in (1, -1, 0))
        sentences.append(
            f"Over {name} the ensemble gains: {gain}. It loses: {loss}. Not shown: {neither}."
        )
    gained = figures[f"{pool}_ensemble_minus_better_balanced"]
    targets = [
        (
            f"{_TARGET_GAIN} points of balanced accuracy over the better member",
            gained,
            _TARGET_GAIN,
        )
    ] + [
        (f"{least} % {_MEASURES[measure]}", figures[f"{pool}_ensemble_{measure}"], least)
        for measure, least in target.items()
    ]
    reached = "; ".join(f"{what}: {_reached(own, least)}" for what, own, least in targets)
    sentences.append(f"Asked: {reached}.")
    return " ".join(sentences)


def side_of(bounds_: Sequence[float]) -> int:
    """Return 1 for an interval above 0, -1 for one below, 0 for one that holds it."""
    low, high = bounds_
    return int(low > 0) - int(high < 0)


def _reached(figure: Mapping[str, Any], target: float) -> str:
    if figure["spread"][0] >= target:
        return "reached, by the whole interval"
    return (
        "reached, though not by the whole interval" if figure["value"] >= target else "**missed**"
    )


def hosts(load: Load, *, file: str = "host.json") -> str:
    """Return whether heads hold on the other host, and whether features tell the host."""
    written = load(file)
    figures, names = written["figures"], list(written["models"])
    rows = {"host_auroc": "a head tells the hosts apart, AUROC"}
    for place in ("", *(f"_{name}" for name in names)):
        on = f", on {place[1:]}" if place else ""
        rows |= {
            f"within_balanced{place}": f"balanced accuracy of heads of the same host{on}",
            f"across_balanced{place}": f"of heads of the other host{on}",
            f"across_minus_within_balanced{place}": f"other − same{on}",
        }
    lines = [
        [text, _figure(figures, key), _figure(figures, f"levelled_{key}")]
        for key, text in rows.items()
    ]
    compared = table(["", "images as they are", "levelled images"], lines)
    sizes = "; ".join(
        f"{name} {sum(row['images'].values())} images, shorter side {row['shorter_side_px']} px in "
        "the median"
        for name, row in written["models"].items()
    )
    classes = written["models"][names[0]]["images"]
    told, drop, plain = (
        side_of(figures[key]["spread"])
        for key in (
            "levelled_minus_host_auroc", "levelled_across_minus_within_balanced",
            "across_minus_within_balanced",
        )
    )  # fmt: skip
    above = figures["host_auroc"]["spread"][0] > 0.5
    holds = figures["across_balanced"]["spread"][0] > 100 / len(classes)
    lost = {-1: "lose balanced accuracy", 0: "lose nothing that is shown", 1: "gain"}
    why = {
        (
            -1,
            -1,
        ): " Part of what they learn holds on one host alone, and resolution and compression "
        "do not explain it.",
        (-1, 0): " Part of what they learn holds on one host alone; resolution and compression may "
        "explain it.",
    }.get((plain, drop), "")
    level = {-1: "less well", 0: "no less well, as far as is shown", 1: "better"}
    sentences = (
        f"The features {'tell' if above else 'are not shown to tell'} the host, on levelled "
        f"images {level[told]}. On the other host, heads {lost[plain]}, and on levelled images "
        f"they {lost[drop]}.{why} Across hosts they are {'' if holds else 'not shown to be '}above "
        f"chance, which is {whole(1 / len(classes))} for {len(classes)} classes."
    )
    return "\n".join(
        [compared, "", sentences, "", f"{sizes}. {written['notes'][0]}", "", bench_machine(written)]
    )


def headline(
    load: Load,
    *,
    file: str = "ham10000-evaluation.json",
    name: str = "HAM10000",
    other: str = "external.json",
) -> str:
    """Return README's table of the evaluation of a bundle, and of the same bundle elsewhere."""
    written = load(file)
    ensemble, best = written["ensemble"], written["difference"]
    rows = [
        (f"top-1 accuracy, ensemble of {len(written['members'])} networks", cell(ensemble["top1"])),
        ("balanced accuracy", cell(ensemble["balanced_accuracy"])),
        ("AUROC, mean over classes", number(ensemble["auroc"])),
        ("calibration error", number(ensemble["calibration_error"])),
    ]
    if best:
        rows += [
            (f"{what}, ensemble − its best member ({best['member']}), points", _points(best[key]))
            for key, what in (("top1", "top-1"), ("balanced_accuracy", "balanced accuracy"))
        ]
    if sets := written["sets"]:
        rows.append(
            (f"sets for {whole(sets['level'])} hold the true class", cell(sets["coverage"]))
        )
    for key, text in (("urgent_risk", "urgent"), ("soon_risk", "urgent or soon")):
        if not (risk := written.get(key)):
            continue
        level = next(row for row in risk["levels"] if row["miss_rate"] == risk["default"])
        target = f"(target: {whole(level['miss_rate'])})"
        rows += [
            (
                f"{level['misses']['n']} {text} images, missed {target}",
                cell(level["misses"]["rate"]),
            ),
            (f"other images called {text}", cell(level["false_alarms"]["rate"])),
        ]
    if written.get("ood"):
        rows.append(("test images refused by the OOD check", cell(written["ood"]["refused"])))
    if other:
        figures = load(other)["figures"]
        count = figures["auroc_external"]["n"]
        rows += [
            (
                f"{count} images by other cameras, at unchanged thresholds: {text}",
                shown(figures[key]),
            )
            for key, text in _ELSEWHERE.items()
        ]
    head = f"{name}: {written['pictures']} test images of {written['groups']} groups"
    lines = table([head, "figure, 95 % interval"], rows)
    return "\n".join([lines, "", origin_of(written["origin"])])


def plain_figures(load: Load, *, file: str, rows: Mapping[str, str]) -> str:
    """Return figures of a benchmark, by their keys, with its notes: the table of most files."""
    written = load(file)
    lines = [[text, _figure(written["figures"], key)] for key, text in rows.items()]
    notes = [text for note in written.get("notes", ()) for text in ("", note)]
    return "\n".join(
        [table(["", "figure, 95 % interval"], lines), *notes, "", bench_machine(written)]
    )


def _points(raw: Mapping[str, float]) -> str:
    own = Interval(**raw)
    return f"{points(own.value)} {bounds(own, 'points')}"


def _speed(figure: Mapping[str, float] | None) -> str:
    if figure is None:
        return ""
    return f"{figure['value']:.0f} [{figure['low']:.0f}, {figure['high']:.0f}]"


def _figure(figures: Figures, key: str) -> str:
    return shown(figures[key], signed="_minus_" in key) if key in figures else ""


def curve(load: Load, *, file: str) -> str:
    """Return the gain over the better member by the number of members, for each way of judging."""
    written = load(file)
    figures = written["figures"]
    rows = []
    for pool, title in _POOLS.items():
        keys = [key for key in figures if key.startswith(f"{pool}_curve_gain_")]
        counts = [key.rsplit("_", 1)[1] for key in keys if key.rsplit("_", 2)[1] == "gain"]
        rows += [
            [title, count, *(shown(figures[f"{pool}_curve_gain_{what}{count}"]) for what in _GAINS)]
            for count in counts
        ]
        if f"{pool}_gain_limit" in figures:
            rows.append([title, "any number", shown(figures[f"{pool}_gain_limit"]), "", ""])
    headings = ["", "members", "over their better one", "their mean", "one network of the cost"]
    return "\n".join([table(headings, rows), "", bench_machine(written)])


_GAINS = ("", "mean_", "same_cost_")


def looks(load: Load, *, split: str, topic: str = "") -> str:
    """Return how often a split was read, of a topic or of all, and what was changed after."""
    written = load("looks.json")
    own = [
        look for look in written["looks"] if look["split"] == split and topic in ("", look["topic"])
    ]
    changed = [look for look in own if look["changed"]]
    days = list(dict.fromkeys(look["when"][:10] for look in own))
    head = (
        f"{first_upper(written['splits'][split])} {'was' if split.endswith('test') else 'were'} "
        f"read {_readings(len(own))}{' for this table' if topic else ''}: "
        f"{' to '.join([days[0], days[-1]][: len(days)])}."
    )
    if not changed:
        return f"{head} No method was changed after it."
    lines = [f"- {look['when'][:10]}: {look['why']} Changed: {look['changed']}" for look in changed]
    after = (
        f"After {'one' if len(changed) == 1 else len(changed)} of these readings the method was "
        "changed, so the figures are no untouched test:"
    )
    return "\n".join([f"{head} {after}", "", *lines])


def _readings(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
