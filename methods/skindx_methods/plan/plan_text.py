"""A plan on a terminal, and as plain values: what `--json` writes."""

import math
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from skindx import __version__
from skindx.core.text import counted, seconds, size
from skindx_methods.plan.choices import Choice
from skindx_methods.plan.estimate import Estimate, PlanOutcome
from skindx_methods.plan.interval import bounds_s, half_width, width_of_all
from skindx_methods.plan.plan import Plan, percent

_ROWS = 12


def summary(plan: Plan) -> list[tuple[str, str]]:
    """Return what is planned and what it takes, as (what, figure)."""
    chosen = plan.chosen
    first, choice, width = chosen.first, chosen.choice, width_of_all(chosen)
    low_s, high_s = bounds_s(first)
    per_node = f"{choice.ranks_per_node} rank{'s' if choice.ranks_per_node > 1 else ''} each"
    where = f"{counted(choice.nodes, 'node')}, {per_node}"
    rows = [
        ("plan", f"{choice.label} on {where}"),
        ("batch", f"{first.choice.batch} images a step, {_of_a_rank(first.choice)}"),
        ("a step", within(first.step_s, half_width(first))),
        (
            "images a second",
            f"{rounded(first.images_per_s)} [{rounded(first.choice.batch / high_s)}, "
            f"{rounded(first.choice.batch / low_s)}]",
        ),
        ("memory of a rank", size(chosen.memory_bytes)),
    ]
    if chosen.seconds:
        longest = max(chosen.members, key=lambda member: member.epoch_s)
        rows.append(("an epoch", within(longest.epoch_s + longest.validation_s, width)))
        if len(chosen.members) > 1:
            rows += [
                (f"member {member.name}", within(member.seconds, width))
                for member in chosen.members[:_ROWS]
            ]
            if len(chosen.members) > _ROWS:
                rows.append(("…", f"{len(chosen.members) - _ROWS} more members"))
        rows.append(("all of it", within(chosen.seconds, width)))
        currency = plan.machine.cluster.currency
        if chosen.money is not None:
            low, high = chosen.money / (1 + width), chosen.money * (1 + width)
            rows.append(("money", f"{chosen.money:.2f} [{low:.2f}, {high:.2f}] {currency}"))
        if chosen.energy_kwh is not None:
            low, high = chosen.energy_kwh / (1 + width), chosen.energy_kwh * (1 + width)
            rows.append(
                ("energy, estimated", f"{chosen.energy_kwh:.3g} [{low:.3g}, {high:.3g}] kWh")
            )
    return rows


def _of_a_rank(choice: Choice) -> str:
    if choice.accumulate > 1:
        return f"{choice.piece} of them on each rank at once, in {choice.accumulate} pieces"
    return f"{choice.piece} of them on each rank"


def candidates(plan: Plan, most: int = _ROWS) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the headings and the rows of the choices that were looked at, the best first."""
    whole = bool(plan.chosen.seconds)
    headings = (
        "choice",
        "ranks",
        "a step",
        "90 %",
        "images/s",
        "communication",
        "memory",
        "all of it" if whole else "MB sent",
    )
    shown = list(plan.search_result.every[:most])
    if plan.chosen not in shown:
        shown.append(plan.chosen)
    return headings, [_row(plan, outcome, whole) for outcome in shown]


def _row(plan: Plan, outcome: PlanOutcome, whole: bool) -> tuple[str, ...]:
    first = outcome.first
    low_s, high_s = bounds_s(first)
    label = outcome.choice.label
    marks = [
        word
        for word, holds in (
            ("changes the gradient", outcome.choice.strategy.lossy),
            ("as given", outcome.as_given),
            ("chosen", outcome is plan.chosen),
            ("not surely faster", outcome is plan.search_result.fastest is not plan.chosen),
        )
        if holds
    ]
    return (
        f"{label} ({', '.join(marks)})" if marks else label,
        str(outcome.choice.ranks),
        seconds(first.step_s),
        f"{seconds(low_s)} .. {seconds(high_s)}",
        rounded(first.images_per_s),
        percent(first.step.parts["communicate"] / first.step_s) if first.step_s else "",
        size(outcome.memory_bytes),
        seconds(outcome.seconds) if whole else rounded(first.schedule.sent_bytes / 1e6),
    )


def render(plan: Plan) -> Group:
    """Return everything for a terminal."""
    facts = Table(show_header=False, box=None, title="Plan", title_justify="left")
    for what, figure in summary(plan):
        facts.add_row(what, figure)
    headings, rows = candidates(plan)
    table = Table(title="Looked at, the fastest first", title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    advice = Table(show_header=False, box=None, title="Guidelines", title_justify="left")
    for guideline in plan.advice:
        advice.add_row(guideline.what, guideline.answer, guideline.formula)
    sentences = [Text(line) for line in (plan.bottleneck, *plan.changes)]
    notes = [Text(f"note: {note}") for note in plan.notes]
    interval = Text("Brackets are 90 % intervals.")
    return Group(facts, interval, Text(""), *sentences, Text(""), table, Text(""), advice, *notes)


FORMAT = 1


def plan_values(plan: Plan) -> dict[str, Any]:
    """Return a plan under stable keys; seconds, bytes, images a second."""
    machine = plan.machine
    return {
        "format": FORMAT,
        "version": __version__,
        "trace": {"source": machine.profiles.source, "host": machine.profiles.host},
        "cluster": {
            "name": machine.cluster.name,
            "source": machine.cluster.source,
            "nodes": machine.cluster.nodes,
            "ranks_per_node": machine.cluster.ranks_per_node,
        },
        "chosen": outcome_values(plan.chosen),
        "fastest": outcome_values(plan.search_result.fastest),
        "given": outcome_values(plan.search_result.given) if plan.search_result.given else None,
        "candidates": [outcome_values(outcome) for outcome in plan.search_result.every],
        "bottleneck": plan.bottleneck,
        "changes": list(plan.changes),
        "guidelines": [
            {"what": advice.what, "answer": advice.answer, "formula": advice.formula}
            for advice in plan.advice
        ],
        "notes": list(plan.notes),
    }


def outcome_values(outcome: PlanOutcome) -> dict[str, Any]:
    """Return one choice."""
    choice = outcome.choice
    width = width_of_all(outcome)
    return {
        "strategy": choice.strategy.name,
        "label": choice.label,
        "lossy": choice.strategy.lossy,
        "nodes": choice.nodes,
        "ranks": choice.ranks,
        "accumulate": choice.accumulate,
        **_step(outcome.first),
        "memory_bytes": round(outcome.memory_bytes),
        "total_s": outcome.seconds or None,
        "total_low_s": outcome.seconds / (1 + width) if outcome.seconds else None,
        "total_high_s": outcome.seconds * (1 + width) if outcome.seconds else None,
        "money": outcome.money,
        "energy_kwh": outcome.energy_kwh,
        "members": [
            {
                "name": member.name,
                "epochs": member.epochs,
                "epoch_s": member.epoch_s + member.validation_s,
                "seconds": member.seconds,
                **_step(member.estimate),
            }
            for member in outcome.members
        ],
        "settings": outcome.settings,
        "beyond": list(outcome.beyond),
    }


def _step(result: Estimate) -> dict[str, Any]:
    low_s, high_s = bounds_s(result)
    return {
        "batch": result.choice.batch,
        "step_s": result.step_s,
        "low_s": low_s,
        "high_s": high_s,
        "images_per_s": result.images_per_s,
        "parts": dict(result.step.parts),
        "sent_bytes": result.schedule.sent_bytes,
        "measured": result.schedule.measured,
        "groups": len(result.schedule.messages),
    }


def within(value: float, width: float) -> str:
    """Return a time with its interval."""
    low, high = value / (1 + width), value * (1 + width)
    return f"{seconds(value)} [{seconds(low)}, {seconds(high)}]"


def rounded(value: float, digits: int = 3) -> str:
    """Return a number of so many digits, with commas and without powers of ten."""
    places = digits - 1 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, places):,.{max(0, places)}f}"
