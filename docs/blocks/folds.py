"""Fine-tuned networks out of fold: what their ensemble gains, and where that claim turns."""

from collections.abc import Mapping
from typing import Any

from blocks.real_skin import LOW_IS_BETTER, gain_side
from blocks.real_skin import MEASURES as ALL_MEASURES
from blocks.texts import Load, bench_machine, shown, table, whole
from skindx.evaluation.figures import first_upper

_LEAST_POINTS = 2.0
"""Points of balanced accuracy over the chosen member that are the project's target."""
_BALANCED = ("balanced_rule_accuracy", "balanced_accuracy", "tuned_rule_accuracy")
MEASURES = ALL_MEASURES | {
    "tuned_rule_accuracy": "balanced accuracy, rule tuned on the other folds"
}
_PLACES = {"histology": "images that histology confirmed", "all": "all images"}
_WAYS = {
    "cautious": "intervals as in the other tables",
    "without_largest": "without the largest group",
    "uncalibrated": "members not calibrated by class",
    "not_histology": "images that histology did not confirm",
    "two_views": "members in two views",
}


def out_of_fold(load: Load, *, file: str) -> str:
    """Return members, ensemble, rivals and gains, histology first, then every other way."""
    written = load(file)
    parts = [_state(written), ""]
    for place, title in _PLACES.items():
        if place in written["parts"]["images"]:
            parts += [_against(written, place, title), ""]
    parts += [_tried(written), "", _classes(written), "", claims(written), ""]
    return "\n".join([*parts, written["notes"][0], "", bench_machine(written)])


def _state(written: Mapping[str, Any]) -> str:
    """Return which folds are finished, and what the trainings took."""
    folds, rows = written["parts"]["folds"], written["models"]
    common = ", ".join(str(fold) for fold in folds["finished"])
    left = folds["of"] - len(folds["finished"])
    missing = f"; {left} {'is' if left == 1 else 'are'} missing" if left else ""
    hours = {
        member: sum(row["training_s"] for row in rows.values() if row["member"] == member) / 3600
        for member in dict.fromkeys(row["member"] for row in rows.values())
    }
    trained = "; ".join(
        f"{member} {len(own)} folds, seed {own[0]['seed']}, {hours[member]:.1f} hours"
        for member in hours
        for own in [[row for row in rows.values() if row["member"] == member]]
    )
    largest = written["parts"]["largest_group"]["images"]
    return (
        f"Folds that all members have finished: {common} of {folds['of']}{missing}. {trained}. The "
        f"largest group has {largest} images."
    )


def _against(written: Mapping[str, Any], place: str, title: str) -> str:
    """Return members, ensemble and gains on some images, a row a figure."""
    figures, choices = written["figures"], written["parts"]["choices"][place]
    members = list(dict.fromkeys(row["member"] for row in written["models"].values()))
    rivals = {
        "chosen": "ensemble − chosen member",
        "strongest": "ensemble − strongest member",
        "same_cost": "ensemble − one network of its cost",
    }
    rivals = {key: text for key, text in rivals.items() if key in choices["auroc"]}
    rows = []
    for key, text in MEASURES.items():
        row = [text, *(shown(figures[f"{place}_{name}_{key}"]) for name in members)]
        row.append(shown(figures[f"{place}_ensemble_{key}"]))
        for rival in rivals:
            gain = shown(figures[f"{place}_ensemble_minus_{rival}_{key}"], signed=True)
            row.append(f"{gain} ({_who(choices[key][rival])})")
        rows.append(row)
    count = written["parts"]["images"][place]
    headings = [f"{title}: {count:,}", *members, "ensemble", *rivals.values()]
    return table(headings, rows)


def _who(choice: Any) -> str:
    """Return who was chosen, with the number of folds and the least share where they differ."""
    if isinstance(choice, str):
        return choice
    names = choice["best"]
    if len(names) > 1:
        each = ", ".join(f"{name} in {count}" for name, count in names.items())
        return f"{each}; {whole(choice['share'])}"
    return f"{next(iter(names))}; {whole(choice['share'])}"


def _ways(written: Mapping[str, Any]) -> dict[str, str]:
    """Return every other way to judge, in words."""
    return {
        way: _WAYS.get(way) or f"fold {way.removeprefix('fold')} alone"
        for way in written["parts"]["tries"]
    }


def _tried(written: Mapping[str, Any]) -> str:
    """Return the gain over the chosen member in each other way to judge it."""
    figures = written["figures"]
    rows = [["all images", *(_gain(figures, "all_ensemble_minus_chosen", k) for k in MEASURES)]]
    if "histology" in written["parts"]["images"]:
        own = (_gain(figures, "histology_ensemble_minus_chosen", key) for key in MEASURES)
        rows.append([_PLACES["histology"], *own])
    for way, text in _ways(written).items():
        rows.append([text, *(_gain(figures, f"try_{way}_chosen", key) for key in MEASURES)])
    return table(["ensemble − chosen member", *MEASURES.values()], rows)


def _gain(figures: Mapping[str, Any], start: str, key: str) -> str:
    return shown(figures[f"{start}_{key}"], signed=True)


def _classes(written: Mapping[str, Any]) -> str:
    """Return of each class what more the ensemble finds, by two rules; and how members differ."""
    figures, (rule, _, tuned) = written["figures"], _BALANCED
    names = [
        key.removeprefix("class_").removesuffix(f"_{rule}")
        for key in figures
        if key.startswith("class_") and key.endswith(f"_{rule}")
    ]
    rows = [
        [name.replace("_", " "), *(_gain(figures, f"class_{name}", key) for key in (rule, tuned))]
        for name in names
    ]
    diversity = {
        "disagreement": "the members name different classes",
        "mistake_correlation": "correlation of their mistakes",
        "error_correlation": "correlation ρ of their errors",
    }
    apart = "; ".join(f"{text} {shown(figures[key])}" for key, text in diversity.items())
    headings = ["found more than by the chosen member", MEASURES[rule], MEASURES[tuned]]
    return f"{table(headings, rows)}\n\n{first_upper(apart)}."


def claims(written: Mapping[str, Any]) -> str:
    """Return what was asked and what came, and where each gain turns."""
    figures = written["figures"]
    asked = [
        f"{MEASURES[key]} {_reached(figures[f'all_ensemble_minus_chosen_{key}'])}"
        for key in _BALANCED
    ]
    parts = [f"Asked: 2 points over the chosen member, interval above 0: {'; '.join(asked)}."]
    reached = sum("reached" in text for text in asked)
    if 0 < reached < len(asked):
        parts.append(f"**The claim turns with the rule.** {_largest_part(figures)}")
    if f"all_ensemble_minus_same_cost_{_BALANCED[0]}" in figures:
        of_cost = [
            f"{MEASURES[key]} {_better(figures, 'all_ensemble_minus_same_cost', key)}"
            for key in ("log_loss", "auroc", *_BALANCED)
        ]
        parts.append(f"Against one network of its cost: {'; '.join(of_cost)}.")
    holds, unsure, turns, never = [], [], [], []
    for key, text in MEASURES.items():
        if gain_side(figures, "all_ensemble_minus_chosen", key) <= 0:
            never.append(text)
            continue
        ways = {"all_ensemble_minus_strongest": "over the strongest member"}
        if "histology" in written["parts"]["images"]:
            ways["histology_ensemble_minus_chosen"] = _PLACES["histology"]
        ways |= {f"try_{way}_chosen": words for way, words in _ways(written).items()}
        sign = -1 if key in LOW_IS_BETTER else 1
        gone = [w for start, w in ways.items() if sign * figures[f"{start}_{key}"]["value"] <= 0]
        open_ = [w for start, w in ways.items() if gain_side(figures, start, key) <= 0]
        wide = [words for words in open_ if words not in gone]
        if gone:
            turns.append(f"{text} ({', '.join(gone)})")
        if wide:
            unsure.append(f"{text} ({', '.join(wide)})")
        if not (gone or wide):
            holds.append(text)
    said = ["; ".join(own) or "nothing" for own in (holds, unsure, turns, never)]
    parts.append(
        "The gain over the chosen member is shown in every way it was tried: {}. It has its sign "
        "there, and the interval holds 0: {}. Its sign turns: {}. No gain on all images: "
        "{}.".format(*said)
    )
    return " ".join(parts)


def _largest_part(figures: Mapping[str, Any]) -> str:
    """Return the class whose gain by the balanced rule is the largest, and that by the tuned."""
    rule, _, tuned = _BALANCED
    classes = [key for key in figures if key.startswith("class_") and key.endswith(f"_{rule}")]
    best = max(classes, key=lambda key: figures[key]["value"])
    name = best.removesuffix(f"_{rule}")
    return (
        f"The largest part of the gain by the balanced rule is {name[6:].replace('_', ' ')}, "
        f"{_gain(figures, name, rule)} points; by the rule that is tuned on the other folds it is "
        f"{_gain(figures, name, tuned)}. How often the balanced rule names a common class hangs "
        "on how sure a predictor is, and a mean is less sure than its members."
    )


def _reached(figure: Mapping[str, Any]) -> str:
    value, low = figure["value"], figure["spread"][0]
    if value >= _LEAST_POINTS and low > 0:
        return "**reached**"
    if low > 0:
        return f"**missed**: a gain, of {value:.1f} points"
    return f"**missed**: {value:+.1f} points, no gain is shown".replace("-", "−")


def _better(figures: Mapping[str, Any], start: str, key: str) -> str:
    return {1: "better", 0: "no difference shown", -1: "worse"}[gain_side(figures, start, key)]
