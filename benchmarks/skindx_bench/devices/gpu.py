"""Everything that needs a GPU: the tests marked `gpu`, and the trainer beside timm's script.

It runs from a checkout, whether skindx is installed or not, and without a network.
"""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field

import skindx
from skindx.core.errors import JobError, UserError
from skindx.core.machine import python_command
from skindx.core.settings_base import Settings
from skindx_bench.harness.parts import Outcome, Part, count_tests, run_part
from skindx_bench.harness.result import Figure, Result, hardware

SMALLEST = ("fake=true",)

FAKE = "fake, on the CPU"
AS_FAKE = {
    "SKINDX_GPU": "fake",
    "CUDA_VISIBLE_DEVICES": "",
    # To compile a network for a CPU takes minutes and shows nothing of a GPU.
    "TORCHDYNAMO_DISABLE": "1",
    "TORCH_COMPILE_DISABLE": "1",
}
TINY = (
    *("gpu_model=test_resnet", "gpu_size=32", "gpu_batch=4", "gpu_steps=2"),
    "fake_gpu=true",
)


class Config(Settings):
    """At most ten minutes in all; each part ends at its own limit, and the others go on."""

    fake: bool = False
    """Let the CPU stand in for the GPU, at tiny sizes: only to see that everything runs."""
    folder: Path = Path("runs/gpu-check")
    """Folder of gpu-NAME.json, written after every part, and of a log of each."""
    tests_s: float = Field(220, gt=0)
    trainer_s: float = Field(330, gt=0)
    batch: int = Field(256, ge=2)
    """Batch of the ResNet-50 that is trained beside timm's script."""
    steps: int = Field(16, ge=2)
    rounds: int = Field(5, ge=3)


def run(settings: Config) -> Result:
    """Run the tests, then the trainer. Raises JobError at the end when a part did not pass.

    Raises UserError without a GPU, and where there are no tests.
    """
    tests = gpu_tests(checkout())
    if not tests:
        raise UserError("bench gpu runs the tests of skindx; start it in a checkout.")
    name, machine = (FAKE, {}) if settings.fake else gpu_facts("bench gpu")
    folder = settings.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"gpu-{short_name(name)}.json"
    machine = {**hardware(), "accelerator": name, **machine}
    environment = AS_FAKE if settings.fake else {"SKINDX_GPU": "cuda"}
    parts: dict[str, Mapping[str, Any]] = {}
    figures: dict[str, Figure] = {}
    notes: tuple[str, ...] = ()
    for part in _parts(settings, tests, folder):
        outcome = run_part(part, environment, folder)
        facts = outcome.facts()
        if part.name == "tests":
            facts |= count_tests(outcome.log)
        else:
            more, notes = _written(folder / "trainer.json", outcome)
            figures |= more
        parts[part.name] = facts
        said = (*(_sentence(part, facts) for part, facts in parts.items()), *notes)
        result = Result("gpu", figures, hardware=machine, notes=said, parts=parts)
        result.to_json(file)
    print(f"written: {file}")
    bad = [part for part, facts in parts.items() if facts["status"] != "passed"]
    if bad:
        from rich.console import Console

        Console().print(result.table(), soft_wrap=True)
        raise JobError(f"{' and '.join(bad)} did not pass; the logs are in {folder}.")
    return result


def gpu_tests(root: Path) -> list[str]:
    """Return the files of a checkout that hold a test marked `gpu`, of all three distributions."""
    folders = (root / "tests", root / "methods/tests", root / "benchmarks/tests")
    return sorted(
        str(path.relative_to(root))
        for folder in folders
        for path in folder.rglob("test_*.py")
        if "pytest.mark.gpu" in path.read_text(encoding="utf-8")
    )


def checkout() -> Path:
    """Return the folder that holds the tests, where skindx runs from a checkout."""
    return Path(skindx.__file__).resolve().parents[1]


def short_name(gpu: str) -> str:
    """Return the name of a GPU as part of a file's name."""
    return "fake" if gpu == FAKE else re.sub(r"\W+", "-", gpu.removeprefix("NVIDIA ").lower())


def gpu_facts(who: str) -> tuple[str, dict[str, Any]]:
    """Return the GPU's name, and driver, CUDA, memory. Raises UserError where there is none."""
    import torch

    from skindx.doctor import nvidia_driver

    if not torch.cuda.is_available():
        raise UserError(
            f"{who} needs an NVIDIA GPU, and torch {torch.__version__} (CUDA "
            f"{torch.version.cuda or 'none'}) sees none; run `skindx doctor`, or try the check on "
            "the CPU with --set fake=true."
        )
    properties = torch.cuda.get_device_properties(0)
    return properties.name, {
        "gpu_memory_gb": round(properties.total_memory / 1e9, 1),
        "driver": nvidia_driver(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "shared_memory_gb": round(shutil.disk_usage("/dev/shm").free / 1e9, 1),  # noqa: S108
    }


def _parts(settings: Config, tests: list[str], folder: Path) -> list[Part]:
    sets = TINY if settings.fake else (f"gpu_batch={settings.batch}", f"gpu_steps={settings.steps}")
    rounds = 3 if settings.fake else settings.rounds
    options = ["--timeout", "280" if settings.fake else "200"]
    return [
        Part("tests", pytest_command(checkout(), tests, options), settings.tests_s),
        Part(
            "trainer",
            trainer_command(
                folder / "trainer.json", (*sets, f"rounds={rounds}"), smallest=settings.fake
            ),
            settings.trainer_s,
        ),
    ]


def pytest_command(root: Path, tests: list[str], more: list[str], workers: int = 4) -> list[str]:
    """Return the command that runs those of a checkout's tests, by file, that are marked `gpu`."""
    # The versions there are not those of the lock: a warning of theirs is no failure of ours.
    options = ["-m", "gpu", "-v", "-W", "default", "-p", "no:cacheprovider", *more]
    # Most of the time tests wait for ranks that start, and for compilers.
    if workers and find_spec("xdist"):
        options += ["-n", str(workers), "--dist", "loadgroup"]
    place = ["--rootdir", str(root), "-c", str(root / "pyproject.toml")]
    return python_command("-m", "pytest", *place, *options, *(str(root / test) for test in tests))


def trainer_command(file: Path, sets: Sequence[str], *, smallest: bool) -> list[str]:
    """Return the command that times the trainer beside timm's script, into a JSON file."""
    given = [argument for own in (*sets, "gpu_peers=[timm]") for argument in ("--set", own)]
    options = [*(["--smallest"] if smallest else []), "--json", str(file)]
    return python_command("-m", "skindx_bench", "trainer", *options, *given)


def _written(file: Path, outcome: Outcome) -> tuple[dict[str, Figure], tuple[str, ...]]:
    """Return the figures and notes that the trainer's bench wrote."""
    if outcome.status != "passed":
        return {}, ()
    found = json.loads(file.read_text(encoding="utf-8"))
    figures = {
        key: Figure(figure["value"], figure["unit"], figure["n"], tuple(figure["spread"]))
        for key, figure in found["figures"].items()
    }
    return figures, tuple(found["notes"])


def _sentence(name: str, facts: Mapping[str, Any]) -> str:
    line = f"{name}: {facts['status']} in {facts['seconds']:.0f} s"
    if "passed" in facts:
        line += (
            f"; {facts['passed']} passed, {len(facts['failed'])} failed, "
            f"{len(facts['skipped'])} skipped"
        )
    return f"{line}."
