"""A kind of another distribution is in the help of `skindx plan make`, and in what it looks at."""

import json
from pathlib import Path

from toy_kinds import ask_beside_toys

ASKS = """
import json
from pathlib import Path
import typer
from skindx_methods.plan.plan import PlanRequest, plan_of_trace
from skindx_methods.plan.plan_text import plan_values
from skindx_methods.plan.search import PlanLimits
from skindx_methods.plan.verb import plan

command = typer.main.get_command(plan).commands["make"]
command.complete()
helps = next(option.help for option in command.params if option.name == "strategy")
asked = PlanRequest(PlanLimits(lossy=True, extrapolate=True), Path(TRACE), "10gbe:4")
rows = plan_values(plan_of_trace(asked))["candidates"]
print(json.dumps({"help": helps, "rows": {row["strategy"]: row["settings"] for row in rows}}))
"""
TRACED = {
    "name": "two",
    "batch": 32,
    "layers": [
        {"name": "conv", "operator": "Conv2d", "forward_s": 1e-3, "backward_s": 2e-3,
         "activation_bytes": 4000, "parameter_bytes": 4_000_000, "outputs": 64},
        {"name": "fc", "operator": "Linear", "forward_s": 3e-3, "backward_s": 4e-3,
         "activation_bytes": 128_000, "parameter_bytes": 8_000_000, "outputs": 1000,
         "input_bytes": 4000},
    ],
}  # fmt: skip


def test_a_kind_of_another_distribution_is_in_help_and_plan(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(json.dumps({"networks": [TRACED]}))
    code = f"TRACE = {str(tmp_path / 'trace.json')!r}\n{ASKS}"
    answers = ask_beside_toys(tmp_path, [], code)
    assert "toy, " in answers["help"]
    assert "toyform" in answers["help"]
    assert answers["rows"]["toy"]["exchange"] == {"kind": "toy"}
