"""The figures of training on clusters: exchanges, elastic runs, forms, second order."""

from collections.abc import Mapping
from typing import Any

from blocks.texts import Load, bench_machine, beside_target, digits, median, table


def forms(load: Load) -> str:
    """Return what each parallel form takes, what was planned for it, and what it learns."""
    return _forms(load("parallel.json"))


def forms_bf16(load: Load) -> str:
    """Return the same where all of them compute in bf16."""
    return _forms(load("parallel-bf16.json"))


def _forms(written: Mapping[str, Any]) -> str:
    figures = written["figures"]
    lines = [
        "| form | s a step | planned | MB a rank | accuracy [range] |",
        "|---|---|---|---|---|",
    ]
    for key in figures:
        if key.endswith("_step_s") and not key.endswith("_small_step_s"):
            name = key.removesuffix("_step_s")
            sent = figures[f"{name}_step_mb"]["value"]
            plan, accuracy = (figures.get(f"{name}_{of}") for of in ("plan_s", "accuracy"))
            planned = f"{plan['value']:.3g}" if plan else ""
            lines.append(
                f"| `{name}` | {median(figures[key], '')} | {planned} | {sent:.3g} | "
                f"{median(accuracy, '') if accuracy else ''} |"
            )
    shown = [
        f"`{key}` {median(figures[key], '')}{beside_target(figures[key], least=least)}"
        for key, least in (("owt_over_data", 3), ("plan_agrees", 1))
        if key in figures
    ]
    return "\n".join([*lines, "", "; ".join(shown) + ".", "", bench_machine(written)])


def elastic(load: Load) -> str:
    """Return which share of its steps a training keeps whose ranks are killed, and how soon."""
    written = load("elastic.json")
    figures = written["figures"]
    kills = {"": "120 s", "_30": "30 s"}
    lines = ["| a rank of 4 is killed every | elastic | the same command again |", "|---|---|---|"]
    for key, seconds in kills.items():
        ours, again = figures[f"elastic_goodput{key}"], figures[f"restarted_goodput{key}"]
        target = beside_target(ours, least=0.65 if key else 0.88)
        lines.append(f"| {seconds} | {median(ours)}{target} | {median(again)} |")
    lines += ["", "| after | the others have | in s |", "|---|---|---|"]
    answers = {
        "closed_noticed_s": ("a rank is killed", "left their step", 1),
        "hang_noticed_s": ("a rank is stopped", "left their step", 5),
        "cut_noticed_s": ("a rank's link goes down", "left their step", 5),
        "regroup_s": ("they left their step", "state, and go on", 3),
    }
    for key, (accident, done, most) in answers.items():
        figure = f"{median(figures[key])}{beside_target(figures[key], most=most)}"
        lines.append(f"| {accident} | {done} | {figure} |")
    network, *_, cores = written["notes"]
    means = (
        "Brackets go from the worst period to the best; they are no confidence intervals. A step "
        "that is lost again does not count. *The same command again* starts as soon as the "
        "training has ended, from its last checkpoint."
    )
    return "\n".join([*lines, "", means, "", network, "", cores, "", bench_machine(written)])


def wires(load: Load) -> str:
    """Return which exchange a plan takes on which wires, and the share of a step that computes."""
    written = load("wires.json")
    rows = written["models"].values()
    exchanges = list(dict.fromkeys(name for row in rows for name in row["shares"]))
    parts = []
    for network, speed in dict.fromkeys((row["network"], row["speed"]) for row in rows):
        own = [row for row in rows if (row["network"], row["speed"]) == (network, speed)]
        faster = "" if speed == 1 else f", on a GPU {speed:g} times as fast"
        title = f"**{network}, {own[0]['images']} images a GPU{faster}**"
        heads = ("wires", *(f"`{name}`" for name in exchanges), "the plan", "with `--lossy`")
        cells = [
            (
                f"`{row['wires']}`",
                *(_share(row["shares"].get(name)) for name in exchanges),
                f"`{row['exact']}`",
                f"`{row['lossy']}`" if row["lossy"] != row["exact"] else "the same",
            )
            for row in own
        ]
        parts.append(f"{title}\n\n{table(heads, cells)}")
    return "\n\n".join([*parts, *written["notes"], bench_machine(written)])


def _share(found: tuple[float, float, float] | None) -> str:
    if found is None:
        return ""
    value, low, high = (f"{100 * one:.0f}" for one in found)
    return f"{value} [{low}, {high}]"


def second_order(load: Load) -> str:
    """Return what each optimizer needs for AdamW's accuracy, and what K-FAC costs a step."""
    random = {"kfac_time_to_adamw": 0.75, "kfac_overhead_step": 1.25, "eigen_share_p4": 0.3}
    measured = (
        ("Small painted images", "second-order.json", random),
        ("Dermoscopic photos", "second-order-isic9.json", random),
        ("Dermoscopic photos from ImageNet weights", "second-order-weights.json", {}),
    )
    tables = [
        f"### {title}\n\n{_optimizers(load(file), limits)}" for title, file, limits in measured
    ]
    # The first note describes a run; the others explain the figures, in each file alike.
    explained = load(measured[-1][1])["notes"][1:]
    return "\n\n".join([*tables, "### What the figures are", *explained])


_MUON_LEAVES_THE_LAST_LAYER = "2026-11-26"
"""To AdamW: since that day."""


def _optimizers(written: Mapping[str, Any], limits: Mapping[str, float]) -> str:
    figures = written["figures"]

    def shown(key: str) -> str:
        return median(figures[key], "") if key in figures else "not reached"

    lines = [
        "| optimizer | learning rate | time | processor time | epochs | runs that reach it | "
        "best, points |",
        "|---|---|---|---|---|---|---|",
    ]
    columns = ("time_to_adamw", "processor_time_to_adamw", "epochs_to_adamw", "reached_adamw")
    for arm, row in written["models"].items():
        cells = (
            ["1", "1", "1", "", "0"]
            if arm == "adamw"
            else [shown(f"{arm}_{key}") for key in (*columns, "minus_adamw_balanced")]
        )
        lines.append(f"| `{arm}` | {row['learning_rate']:g} | {' | '.join(cells)} |")
    targets = []
    for key in ("kfac_time_to_adamw", "kfac_overhead_step", "eigen_share_p4"):
        target = beside_target(figures[key], most=limits[key]) if key in limits else ""
        targets.append(f"`{key}` {shown(key)}{target}")
    about = written["notes"][0]
    if "muon" in written["models"] and written["date"] < _MUON_LEAVES_THE_LAST_LAYER:
        about += " `muon` took the last layer too."
    return "\n".join([*lines, "", "; ".join(targets) + ".", "", about, "", bench_machine(written)])


def exchanges(load: Load) -> str:
    """Return the times of the exchanges, part by part."""
    written = load("exchange.json")
    lines = ["| network | exchange | ms | of these local | MB a rank |", "|---|---|---|---|---|"]
    for row in written["models"].values():
        local = median(row["local_ms"], "") if row.get("local_ms") else ""
        sent = f"{row['sent_bytes'] / 1e6:.3g}" if row["sent_bytes"] else ""
        total = median(row["total_ms"], "")
        lines.append(f"| {row['part']} | {row['name']} | {total} | {local} | {sent} |")
    notes = [line for note in written["notes"] for line in ("", note)]
    return "\n".join([*lines, *notes, "", bench_machine(written)])


_ARMS = {
    "dense": ("`dense`", "the network keeps up, or every tenth of a point counts"),
    "powersgd": ("`powersgd`", "the network is slow and layers are wide"),
    "gtopk": ("`gtopk`", "the network is slow, ranks and epochs are many"),
    "local": ("`local`", "a message in each step takes too long, and weights are given"),
    "local-longer": ("`local`, twice the epochs", "the same, and images may be seen more often"),
    "apart_ensemble": (
        "members apart, answers averaged",
        "ranks cannot reach each other, and answers may take as many times longer",
    ),
    "apart_soup": ("members apart, weights averaged", "the same, and all start from given weights"),
    "apart_member0": ("one member apart", "nowhere: it has seen only its share of the images"),
}
"""What is compared, and what it is for."""

_CASES = {
    "skin": "MobileNetV2 from ImageNet weights, images of skin",
    "painted": "ResNet-18 from random weights, synthetic images",
}


def local_steps(load: Load) -> str:
    """Return what exchanges and members trained apart cost in accuracy and save in bytes."""
    written = load("local.json")
    figures, models = written["figures"], written["models"]
    cases = dict.fromkeys(name.split(": ")[0] for name in models)
    made: list[str] = []
    shown: dict[str, None] = {}
    for case in cases:
        dense = models[f"{case}: dense"]["steps"]
        links = list(dense)
        heads = ["trained by", "accuracy, points from `dense`"]
        heads += ["times fewer bytes"] if links else []
        heads += [f"step at {mbit} Mbit/s, s" for mbit in links]
        heads += [f"times longer than `local`, {mbit} Mbit/s" for mbit in links]
        rows = []
        for arm, (name, _) in _ARMS.items():
            like = "local" if arm == "local-longer" else arm.split("_")[0]
            steps = models.get(f"{case}: {like}", {}).get("steps", {})
            gain = figures.get(f"{case}_{arm}_minus_dense_balanced")
            if gain is None and (arm.startswith(("apart", "local")) or not steps):
                continue
            less = digits(_less(dense, steps)) if steps else ""
            sent = ["none sent" if arm.startswith("apart") else less] if links else []
            later = [figures.get(f"{case}_local_over_{arm}_{mbit}mbit") for mbit in links]
            rows.append([
                name, median(gain) if gain else "0" if arm == "dense" else "not trained", *sent,
                *(digits(steps[mbit]["seconds"]) if mbit in steps else "" for mbit in links),
                *(_sooner(x, models, case, arm) for x in later),
            ])  # fmt: skip
            shown[name] = None
        made += [f"**{_CASES[case]}**", "", table(heads, rows), "", *_rounds(case, models)]
    advice = [[name, when] for name, when in _ARMS.values() if name in shown]
    made += [table(["trained by", "where"], advice), ""]
    for note in written["notes"]:
        key, colon, text = note.partition(":")
        made += [f"**{_COLUMNS[key]}**:{text}" if colon and key in _COLUMNS else note, ""]
    return "\n".join([*made, bench_machine(written)])


def _sooner(figure: Any, models: Mapping[str, Any], case: str, arm: str) -> str:
    """Return how much longer an arm took; a bound alone where no seed came to the accuracy."""
    if not figure:
        return "–"
    kind, _, part = arm.partition("_")
    splits = [f"{part}_{split}" if part else split for split in ("val", "test")]
    reached = False
    for dense, seed in zip(
        models[f"{case}: dense"]["seeds"], models[f"{case}: {kind}"]["seeds"], strict=False
    ):
        goal = (dense["val"][-1] + dense["test"][-1]) / 2 - 0.5
        curves = zip(*(seed[split] for split in splits), strict=True)
        reached |= any(sum(pair) / 2 >= goal for pair in curves)
    return median(figure, "") if reached else f"more than {digits(figure['value'])}: never reached"


_COLUMNS = {
    "X_minus_dense_balanced": "Accuracy",
    "bytes_less_than_X": "Bytes",
    "local_over_X": "Times longer",
}
"""What a note of the benchmark calls its figures -> what the table calls them."""


def _rounds(case: str, models: Mapping[str, Any]) -> list[str]:
    """Return what shorter rounds came to, where they were looked at."""
    others = {
        name: row
        for name, row in models.items()
        if name.startswith(f"{case}: ") and "seeds" not in row
    }
    if not others:
        return []
    first = [
        (models[f"{case}: {arm}"]["exchange"], models[f"{case}: {arm}"]["seeds"][0]["val"])
        for arm in ("dense", "local")
    ]
    rows = [
        [str(exchange.get("steps", 0)), digits(val[-1])]
        for exchange, val in [*first, *((row["exchange"], row["val"]) for row in others.values())]
    ]
    heads = ["steps of a round (0: `dense`)", "accuracy on validation images, first seed, %"]
    return [table(heads, rows), ""]


def _less(dense: Mapping[str, Any], steps: Mapping[str, Any]) -> float:
    link = next(iter(dense))
    return float(dense[link]["bytes"] / steps[link]["bytes"])
