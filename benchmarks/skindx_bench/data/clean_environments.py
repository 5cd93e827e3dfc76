"""Make the peers' environments: `python -m skindx_bench.data.clean_environments FOLDER [PEER ...]`.

Each distribution gets a virtual environment of its own, so that what they need cannot clash. Some
forbid commercial use (SelfClean: CC BY-NC 4.0; fastdup: CC BY-NC-ND 4.0): read their licences.
"""

import sys
from pathlib import Path

from skindx.core.errors import UserError
from skindx_bench.harness.environments import NotInstalledError, PeerEnvironment

NEEDS: dict[str, tuple[str, ...]] = {
    "imagededup": ("imagededup", "setuptools<81"),
    "cleanvision": ("cleanvision",),
    "selfclean": ("selfclean", "timm", "setuptools<81"),
    "fastdup": ("fastdup",),
}
"""Environment -> what is installed into it."""


def make(folder: Path, names: list[str]) -> int:
    """Make the environments that are named (none: all); return how many could not be made."""
    for name in names:
        if name not in NEEDS:
            raise UserError(f"there is no peer {name!r}; choose from {', '.join(NEEDS)}.")
    failed = 0
    for name in names or NEEDS:
        try:
            PeerEnvironment(name, NEEDS[name]).make(folder)
        except NotInstalledError as error:
            failed += 1
            print(error)
        else:
            print(f"{name}: installed")
    return failed


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    raise SystemExit(make(Path(sys.argv[1]), sys.argv[2:]))
