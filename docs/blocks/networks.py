"""What each network can do."""

from blocks.texts import Load, bench_machine

_FAMILIES = "families.json"


def model_families(load: Load) -> str:
    """Return what each network can do, and the reasons of those that cannot."""
    written = load(_FAMILIES)
    stages = list(written["figures"])
    headings = [stage.replace("_", " ") for stage in stages]
    lines = [f"| network | {' | '.join(headings)} |", "|---" * (len(stages) + 1) + "|"]
    reasons: list[str] = []
    for name, row in written["models"].items():
        lines.append(
            f"| `{name}` | {' | '.join(_answer(row[stage], reasons) for stage in stages)} |"
        )
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    whole = sum(all(row[stage] == "yes" for stage in stages) for row in written["models"].values())
    counted = (
        f"{whole} of {len(written['models'])} networks pass every stage. {written['notes'][0]}"
    )
    return "\n".join([counted, "", *lines, "", *notes, "", bench_machine(written)])


def _answer(answer: str, reasons: list[str]) -> str:
    """Return a cell: yes, or the number of its reason, which is added to `reasons`."""
    if answer == "yes":
        return "yes"
    reason = " ".join(answer.removeprefix("no: ").replace("`", "'").split())
    if reason not in reasons:
        reasons.append(reason)
    return f"no ({reasons.index(reason) + 1})"
