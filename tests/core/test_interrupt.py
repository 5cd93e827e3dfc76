"""Ctrl-C in the middle of an import is neither lost nor half an import."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

# A library as there are: whatever its own imports raise, it goes on without them.
_CATCHES = "try:\n    import interrupting\nexcept BaseException:\n    pass\n"
_INTERRUPTS = "import signal\nsignal.raise_signal(signal.SIGINT)\nWHOLE = True\n"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    (tmp_path / "catching.py").write_text(_CATCHES)
    (tmp_path / "interrupting.py").write_text(_INTERRUPTS)
    return tmp_path


def _run(library: Path, name: str, lines: str) -> "subprocess.CompletedProcess[str]":
    """Run lines in a module of that name, which heeds interrupts."""
    module = f"import sys\nsys.path.insert(0, {str(library)!r})\n{lines}"
    program = (
        "from skindx.core.startup import heed_interrupts\nheed_interrupts()\n"
        f"exec(compile({module!r}, 'lines', 'exec'), {{'__name__': {name!r}}})\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def test_a_verb_that_still_imports_ends_at_once(library: Path) -> None:
    done = _run(library, "skindx.cli.train", "import catching\nprint('went on')")
    assert done.returncode == 130
    assert done.stdout == ""
    assert done.stderr == "stopped; run the same command again to go on\n"


def test_work_that_imports_is_interrupted_after_the_import(library: Path) -> None:
    lines = (
        "try:\n    import catching\n    print('went on')\n"
        "except KeyboardInterrupt:\n    import interrupting\n    print(interrupting.WHOLE)\n"
    )
    done = _run(library, "skindx.evaluation", lines)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_second_interrupt_does_not_wait_for_the_import(library: Path) -> None:
    (library / "interrupting.py").write_text(_INTERRUPTS.replace("WHOLE", _INTERRUPTS + "WHOLE"))
    done = _run(library, "skindx.evaluation", "import catching\nprint('went on')")
    assert (done.returncode, done.stdout) == (130, "")


def test_what_ignores_interrupts_goes_on_ignoring_them() -> None:
    program = (
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from skindx.core.startup import heed_interrupts\nheed_interrupts()\n"
        "signal.raise_signal(signal.SIGINT)\nprint('went on')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "went on\n"
