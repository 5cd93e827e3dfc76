"""Print a part of the lock: `python .ci/lock_part.py [--no-torch] [EXTRA or PACKAGE ...]`.

What the core, these extras and packages need, by the lines `# via` that uv wrote, with all hashes;
nothing named: the whole lock. `--no-torch` leaves out torch, torchvision and what comes with CUDA.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"

_CUDA = re.compile(r"torch|torchvision|triton|cuda-[\w-]+|nvidia-(?!ml-py)[\w-]+")
_VIA = re.compile(r"^    #(?: via|  ) ([\w.-]+)", re.MULTILINE)


def entries(lock: str) -> Iterator[tuple[str, str]]:
    """Return name and text of each pinned package; one may be pinned for several platforms."""
    for text in re.split(r"^(?=[\w.-]+==)", lock, flags=re.MULTILINE)[1:]:
        yield text.partition("==")[0], text


def needed(lock: str, wanted: Iterable[str]) -> set[str]:
    """Return the packages that are needed for the core, and for extras or packages by name.

    An extra of a package counts as if all asked for it: a little more may be named than is needed.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    requires: dict[str, set[str]] = {}
    for name, text in entries(lock):
        for parent in _VIA.findall(text):
            requires.setdefault(parent, set()).add(name)
    lines = [line for name in wanted for line in extras.get(name, [name])]
    waiting = [_name(line) for line in (*project["dependencies"], *lines)]
    found: set[str] = set()
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += requires.get(name, ())
    return found


def _name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


def part_of(lock: str, wanted: Iterable[str], *, torch: bool = True) -> str:
    """Return the lock of these extras and packages."""
    chosen = needed(lock, wanted) if wanted else None
    return "".join(
        text
        for name, text in entries(lock)
        if (chosen is None or name in chosen) and (torch or not _CUDA.fullmatch(name))
    )


if __name__ == "__main__":
    names = [argument for argument in sys.argv[1:] if argument != "--no-torch"]
    print(part_of(LOCK.read_text("utf-8"), names, torch="--no-torch" not in sys.argv), end="")
