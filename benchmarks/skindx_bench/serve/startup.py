"""How long the command line takes to answer, in fresh processes."""

import subprocess
from collections.abc import Callable

from pydantic import Field

from skindx.core.machine import python_command
from skindx.core.measurement import interleave
from skindx.core.settings_base import Settings
from skindx_bench.harness.result import Result, median

ARGUMENTS = {
    "help_s": ("-m", "skindx", "--help"),
    "import_s": ("-c", "import skindx"),
}
"""Figure -> what the interpreter is started with."""

BASELINE = ("-c", "pass")

SMALLEST = ("rounds=3",)


class Config(Settings):
    """`rounds` fresh processes for each figure."""

    rounds: int = Field(10, ge=3)


def run(settings: Config) -> Result:
    """Time `skindx --help` and `import skindx` beside a bare interpreter, wall seconds."""
    candidates = {key: _fresh(arguments) for key, arguments in ARGUMENTS.items()}
    seconds = interleave(candidates | {"bare python": _fresh(BASELINE)}, settings.rounds)
    figures = {name: median(samples, "s") for name, samples in seconds.items()}
    baseline = {"bare python": figures.pop("bare python")}
    return Result("startup", figures, baseline)


def _fresh(arguments: tuple[str, ...]) -> Callable[[], None]:
    command = python_command(*arguments)

    def start() -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr}")

    return start
