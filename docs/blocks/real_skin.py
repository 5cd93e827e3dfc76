"""Networks, ensembles and hosts on real skin: what the figures say, by rule.

A gain or a loss is an interval on one side of 0; everything else is named as not shown.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from blocks.texts import Load, bench_machine, cell, number, shown, table, whole
from skindx.evaluation.figures import first_upper

Figures = Mapping[str, Mapping[str, Any]]

MEASURES = {
    "top1": "top-1",
    "balanced_accuracy": "balanced accuracy",
    "balanced_rule_accuracy": "balanced accuracy, balanced rule",
    "auroc": "AUROC",
    "log_loss": "log loss (low is good)",
}
LOW_IS_BETTER = ("log_loss",)
_CALIBRATION = {
    "log_loss": "log loss",
    "classwise_calibration_error": "classwise calibration error",
    "melanoma": "melanoma, observed over expected",
    "top1": "top-1",
    "balanced_rule_top1": "top-1, balanced rule",
    "balanced_accuracy": "balanced accuracy",
    "balanced_rule_accuracy": "balanced accuracy, balanced rule",
}
_TRIALS = {
    "all": "over the strongest member",
    "subset": "{}",
    "uncalibrated": "not calibrated by class",
    "views": "in two views",
}
"""How each gain is tried; the first is the claim, and it turns where another is not above 0."""
_TARGET_GAIN = 2
"""Points of balanced accuracy over the better member that are the project's target."""
POOLS = {
    "frozen": "Linear heads on frozen networks, out of fold",
    "folds": "Frozen and fine-tuned networks, out of fold",
    "trained": "Fine-tuned networks, out of fold",
    "split": "Fine-tuned networks, one split",
}
_RIVALS = {"better": "the better member", "same_cost": "one network of its cost"}


def networks(load: Load, *, file: str) -> str:
    """Return a row for each network, the best balanced accuracy first."""
    written = load(file)
    columns = {key: MEASURES[key] for key in list(MEASURES)[:4]} | {
        "melanoma_auroc": "AUROC of melanoma",
        "melanoma_pauc_80": "above 80 % sensitivity",
        "melanoma_pauc_88": "above 88 %",
    }
    rows = dict(
        sorted(written["models"].items(), key=lambda item: -item[1]["balanced_accuracy"]["value"])
    )
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
        percent = ("top1", "balanced_accuracy", "balanced_rule_accuracy")
        figures = [cell(row[key]) if key in percent else number(row[key]) for key in columns]
        lines.append([f"{name} ({row['trained']})", *costs, *figures])
    counts = ", ".join(sorted({str(row["images"]) for row in rows.values()}))
    notes = [f"Judged on {counts} images. {written['notes'][0]}", "", bench_machine(written)]
    if speed := written["parts"].get("speed"):
        notes += ["", f"Speed: {bench_machine(speed)}"]
    return "\n".join([table(headings, lines), "", *notes])


def ensembles(
    load: Load, *, file: str, subset: str, target: Mapping[str, float] | None = None
) -> str:
    """Return the ensembles beside single networks, and in words what they gain.

    `subset`: the images on which gains are tried alone, in words; `target`: the percent that are
    the ensemble's target, by figure.
    """
    written = load(file)
    parts = []
    for pool, name in POOLS.items():
        if pool in written["parts"]:
            trials = {
                trial: text.format(subset)
                for trial, text in _TRIALS.items()
                if trial in written["parts"][pool]["least"]
            }
            parts += [*_against(written, pool, name), "", _tried(written, pool, trials), ""]
            parts += [_claims(written, pool, trials, target or {}), ""]
    return "\n".join([*parts, bench_machine(written)])


def _against(written: Mapping[str, Any], pool: str, name: str) -> list[str]:
    """Return an ensemble beside the rivals that were surely chosen, and the gain over each else."""
    figures, part = written["figures"], written["parts"][pool]
    headings = [name, "ensemble"]
    rows = [[text, _figure(figures, f"{pool}_ensemble_{key}")] for key, text in MEASURES.items()]
    notes, parts = [f"Ensemble chosen: {_shares(part['ensembles'])}."], []
    for rival, title in _RIVALS.items():
        choices = part["choices"].get(rival)
        if choices is None:
            notes.append(f"No {title.removeprefix('one ')} was kept, so that column is absent.")
            continue
        headings += [title, f"ensemble − {title.removeprefix('one ')}", "chosen by"]
        for row, key in zip(rows, MEASURES, strict=True):
            best, sure = _shares(choices[key]["best"]), choices[key]["sure"]
            alone = _figure(figures, f"{pool}_{rival}_{key}")
            row += [
                f"{best}: {alone}" if sure else "chance decides",
                _figure(figures, f"{pool}_ensemble_minus_{rival}_{key}") if sure else "see below",
                f"{whole(choices[key]['share'])} ({best})",
            ]
        unsure = [key for key in MEASURES if not choices[key]["sure"]]
        each = [
            [other, *(_figure(figures, f"{pool}_ensemble_minus_{other}_{key}") for key in unsure)]
            for other in _rivals_of(part, rival)
        ]
        if unsure:
            head = [f"ensemble − each that may be {title}", *(MEASURES[key] for key in unsure)]
            parts += ["", table(head, each)]
    costs = "; ".join(f"{one} {share:.2f}" for one, share in part["cost"].items())
    if costs:
        notes.append(f"Operations over the ensemble's: {costs}.")
    notes.append(
        "*Chosen by*: the share of resampled groups of the images that choose, of several folds "
        "the least, in which this one is the best by the figure of the row."
    )
    return [table(headings, rows), *parts, "", " ".join(notes)]


def _rivals_of(part: Mapping[str, Any], rival: str) -> list[str]:
    if rival == "same_cost":
        return list(part["cost"])
    return list(dict.fromkeys(one for text in part["ensembles"] for one in text.split(" + ")))


def _shares(counts: Mapping[str, int]) -> str:
    """Return what was chosen, with the number of folds where they differ."""
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{name} in {count} fold{'s' * (count > 1)}" for name, count in counts.items())


def _tried(written: Mapping[str, Any], pool: str, trials: Mapping[str, str]) -> str:
    """Return each gain over the strongest member, and the same otherwise."""
    figures, least = written["figures"], written["parts"][pool]["least"]
    rows = [
        [
            text,
            *(
                f"{shown(figures[f'{pool}_least_{trial}_{key}'], signed=True)} "
                f"({least[trial][key]})"
                for trial in trials
            ),
        ]
        for key, text in MEASURES.items()
    ]
    return table(["the ensemble's gain", *trials.values()], rows)


def gain_side(figures: Figures, name: str, key: str) -> int:
    """Return 1 for a gain in a figure, -1 for a loss, 0 where neither is shown."""
    side = side_of(figures[f"{name}_{key}"]["spread"])
    return -side if key in LOW_IS_BETTER else side


def _claims(
    written: Mapping[str, Any], pool: str, trials: Mapping[str, str], target: Mapping[str, float]
) -> str:
    """Return what the ensemble gains over every member, what turns, and what was asked."""
    figures = written["figures"]
    sides = {
        key: {trial: gain_side(figures, f"{pool}_least_{trial}", key) for trial in trials}
        for key in MEASURES
    }
    holds, turns, loses, neither = [], [], [], []
    for key, text in MEASURES.items():
        side = sides[key]["all"]
        if side > 0 and (turned := [trials[one] for one, own in sides[key].items() if own <= 0]):
            turns.append(f"{text} ({', '.join(turned)})")
        else:
            {1: holds, -1: loses, 0: neither}[side].append(text)
    listed = ["; ".join(texts) or "nothing" for texts in (holds, turns, loses, neither)]
    said = (
        "Over each of its members the ensemble gains, however it is tried: {}. It gains, but the "
        "claim turns: {}. It loses: {}. Not shown: {}."
    ).format(*listed)
    rules = ("balanced_accuracy", "balanced_rule_accuracy")
    tried = [(key, figures[f"{pool}_least_{trial}_{key}"]) for key in rules for trial in trials]
    by = {
        key: min(own["value"] for rule, own in tried if rule == key) >= _TARGET_GAIN
        and min(sides[key].values()) > 0
        for key in rules
    }
    if all(by.values()):
        gained = "reached by both rules, however it is tried"
        if min(own["spread"][0] for _, own in tried) < _TARGET_GAIN:
            gained += ", though not by the whole interval"
    elif max(own["value"] for _, own in tried) < _TARGET_GAIN:
        gained = "**missed**"
    else:
        gained = "**not shown**, since it turns with the rule, the images or the calibration"
    asked = [f"{_TARGET_GAIN} points of balanced accuracy over the better member: {gained}"] + [
        f"{least} % {MEASURES[key]}: {_reached(figures[f'{pool}_ensemble_{key}'], least)}"
        for key, least in target.items()
    ]
    return f"{said} Asked: {'; '.join(asked)}."


def calibration(load: Load, *, files: Mapping[str, str]) -> str:
    """Return figures of ensembles before and after calibration by class.

    `files`: the result of each dataset, by its name.
    """
    rows, machines = [], {}
    for name, file in files.items():
        written = load(file)
        machines[bench_machine(written)] = None
        for pool, title in POOLS.items():
            if pool in written["parts"]:
                for when in ("before", "after"):
                    prefix = f"{pool}_calibration_{when}"
                    figures = [
                        _figure(written["figures"], f"{prefix}_{key}") for key in _CALIBRATION
                    ]
                    rows.append([f"{name}, {title[0].lower()}{title[1:]}: {when}", *figures])
    note = (
        "Mean of all members, in two views where two were kept. *Before*: a temperature alone. A "
        "fold leaves the calibration by class out where log loss gains nothing beyond chance on "
        "the images that choose; then its *after* is *before*."
    )
    return "\n".join([table(["", *_CALIBRATION.values()], rows), "", note, "", *machines])


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


def plain_figures(load: Load, *, file: str, rows: Mapping[str, str]) -> str:
    """Return figures of a benchmark, by their keys, with its notes: the table of most files."""
    written = load(file)
    lines = [[text, _figure(written["figures"], key)] for key, text in rows.items()]
    notes = [text for note in written.get("notes", ()) for text in ("", note)]
    return "\n".join(
        [table(["", "figure, 95 % interval"], lines), *notes, "", bench_machine(written)]
    )


def _speed(figure: Mapping[str, float] | None) -> str:
    if figure is None:
        return ""
    return f"{figure['value']:.0f} [{figure['low']:.0f}, {figure['high']:.0f}]"


def _figure(figures: Figures, key: str) -> str:
    return shown(figures[key], signed="_minus_" in key) if key in figures else ""


def curve(load: Load, *, file: str) -> str:
    """Return the gain over the mean member by the number of members, for each way of judging.

    Over a better member it would be one over what chance chooses, which `ensembles` shows.
    """
    written = load(file)
    figures = written["figures"]
    rows = []
    for pool, title in POOLS.items():
        start = f"{pool}_curve_gain_mean_"
        counts = [key.removeprefix(start) for key in figures if key.startswith(start)]
        rows += [[title, count, shown(figures[f"{start}{count}"])] for count in counts]
        if f"{pool}_gain_limit_mean" in figures:
            rows.append([title, "any number", shown(figures[f"{pool}_gain_limit_mean"])])
    headings = ["by the balanced rule", "members", "over their mean member"]
    return "\n".join([table(headings, rows), "", bench_machine(written)])


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
