"""The process that does the container benchmark's tasks, outside of a container or inside."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from skindx_bench.harness.answering import Commands, answer_commands
from skindx_bench.serve.container_tasks import Amounts, prepare, timed


def start(job: dict[str, Any]) -> Commands:
    """Prepare the tasks of a job and return the commands."""
    stack = ExitStack()
    folder = Path(job["folder"])
    tasks = prepare(folder, Amounts(**job["amounts"]), job["tasks"], stack)

    def run(task: str, slow: float, repeats: int) -> dict[str, Any]:
        return {"seconds": timed(tasks[task], slow, repeats)}

    def end() -> dict[str, Any]:
        stack.close()
        return {}

    return {"run": run, "end": end}


if __name__ == "__main__":
    answer_commands(start)
