"""The distributions that stand beside skindx in its checkout, and what to do where one is missing.

Neither is on a package index, so no message gives a name to install: a stranger could take it.
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import skindx
from skindx.core.errors import UserError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

LAB, METHODS = "skindx-bench", "skindx-methods"
FOLDERS = {LAB: ("methods", "benchmarks"), METHODS: ("methods",)}
"""Distribution -> the folders in the checkout that it is installed from.

The lab needs the kit: with both in one command pip asks no index for the kit's name.
"""


def how_to_install(distribution: str) -> str:
    """Return the command that installs one of FOLDERS in the version of this skindx."""
    checkout = Path(skindx.__file__).resolve().parents[1]
    local = [checkout / folder for folder in FOLDERS[distribution]]
    if all((folder / "pyproject.toml").is_file() for folder in local):
        return f"run `pip install {shlex.join(map(str, local))}`"
    folders = " ".join(f"./{folder}" for folder in FOLDERS[distribution])
    return f"run `pip install {folders}` in a checkout of skindx {skindx.__version__}"


def missing(what: str, distribution: str) -> str:
    """Return why `what` (a verb or a kind, as a message names it) is not there, and what to do."""
    return f"{what} needs {distribution}, which is not installed; {how_to_install(distribution)}"


def check_version(entry: "EntryPoint") -> None:
    """Raise UserError where one of FOLDERS that brings an entry point has another version."""
    name, version = (entry.dist.name, entry.dist.version) if entry.dist else ("", "")
    if name in FOLDERS and version != skindx.__version__:
        raise UserError(
            f"{name} has version {version}, and this is skindx {skindx.__version__}; "
            f"{how_to_install(name)}."
        )


def entry_of(group: str, name: str) -> "EntryPoint | None":
    """Return the entry point of that name, of two the first; None where nothing installed has it.

    Metadata of packages is read at each call: it takes tens of milliseconds.
    """
    from importlib.metadata import entry_points

    return next((entry for entry in entry_points(group=group) if entry.name == name), None)


def load_entry(entry: "EntryPoint", what: str) -> Any:
    """Return what an entry point names. Raises UserError, with `what` as the message names it."""
    check_version(entry)
    try:
        return entry.load()
    except Exception as error:  # code of others: whatever it raises, it is not there
        distribution = entry.dist.name if entry.dist else entry.value
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"{what} cannot be loaded from {distribution} ({reason}); reinstall or remove "
            f"{distribution}."
        ) from error
