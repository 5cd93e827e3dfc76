"""A plan as plain values: what `--json` writes."""

from typing import Any

from skindx import __version__
from skindx.planning.estimate import Estimate
from skindx.planning.outcome import Outcome
from skindx.planning.plan import Plan

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
        "fastest": outcome_values(plan.found.fastest),
        "given": outcome_values(plan.found.given) if plan.found.given else None,
        "candidates": [outcome_values(outcome) for outcome in plan.found.every],
        "bottleneck": plan.bottleneck,
        "changes": list(plan.changes),
        "guidelines": [
            {"what": advice.what, "answer": advice.answer, "formula": advice.formula}
            for advice in plan.advice
        ],
        "speedup": [
            {"ranks": point.ranks, "speedup": point.speedup, "low": point.low, "high": point.high}
            for point in plan.curve
        ],
        "notes": list(plan.notes),
    }


def outcome_values(outcome: Outcome) -> dict[str, Any]:
    """Return one choice."""
    choice = outcome.choice
    width = outcome.half_width
    return {
        "strategy": choice.strategy.name,
        "label": choice.label,
        "lossy": choice.strategy.lossy,
        "executed": choice.strategy.executed,
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
        "settings": outcome.settings if choice.strategy.executed else None,
        "beyond": list(outcome.beyond),
    }


def _step(found: Estimate) -> dict[str, Any]:
    return {
        "batch": found.choice.batch,
        "step_s": found.step_s,
        "low_s": found.low_s,
        "high_s": found.high_s,
        "images_per_s": found.images_per_s,
        "parts": dict(found.step.parts),
        "sent_bytes": found.schedule.sent_bytes,
        "measured": found.schedule.measured,
        "groups": len(found.schedule.messages),
    }
