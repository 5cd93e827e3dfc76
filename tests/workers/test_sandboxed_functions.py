"""A sandboxed process runs marked functions of skindx, and nothing else."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import skindx
from skindx.data.publish.clean_images import cleaning_work
from skindx.data.screening.screen import screening_work
from skindx.imaging.sandboxed_images import heic_decoding
from skindx.workers.sandbox import MakeWork, reference, resolve, run_sandboxed, sandboxed
from skindx.workers.worker_process import SandboxLimits


@pytest.mark.parametrize("function", [cleaning_work, heic_decoding, screening_work])
def test_marked_functions_are_found_by_their_reference(function: MakeWork) -> None:
    assert resolve(reference(function)) is function


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "skindx:cleaning",
        "skindx.core.atomic_files:write_text",  # ours, but not marked
        "skindx.data.publish.clean_images:sandboxed",
        "skindx.data.publish.clean_images:screening",
        "skindx.workers.sandbox:reference.__globals__",
        "skindx.data.publish.clean_images:run_sandboxed",
        "skindx.data.publish.clean_images:subprocess",
        "../skindx.core.atomic_files:write_text",
        "",
    ],
)
def test_other_functions_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"names no function|not marked"):
        resolve(name)


def test_a_function_of_another_package_is_refused_although_it_is_marked() -> None:
    with pytest.raises(ValueError, match="names no function of skindx"):
        next(run_sandboxed(sandboxed(print)(lambda job: None), {}, [], SandboxLimits(1, 200), 1))  # type: ignore


def test_the_process_that_forks_them_stays_small() -> None:
    """What one of them imports counts as memory of all: their limits would be reached too early."""
    root = Path(skindx.__file__).parents[1]
    marked = [
        f"{'.'.join(path.relative_to(root).with_suffix('').parts)}:{name}"
        for path in sorted(root.glob("skindx/**/*.py"))
        for name in re.findall(r"^@sandboxed\(.*\)\ndef (\w+)", path.read_text(), re.MULTILINE)
    ]
    assert len(marked) >= 8
    code = (
        "import sys\nfrom skindx.workers.sandbox import prepare, resolve\n"
        "for name in sys.argv[1:]: prepare(resolve(name))\n"
        "print(*sorted({'torch', 'pyvips', 'zarr', 'gradio', 'ray'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", code, *marked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
