"""The compared methods: the project's own, and peers in their own environments."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from skindx.core.errors import UserError
from skindx_bench.clean import peers as peers_script
from skindx_bench.clean.answer import NoAnswerError
from skindx_bench.clean.peers import PEERS

OURS = "skindx"
OWN = (OURS, "hashes", "phash")
"""What a build groups; its hashes alone; the plain perceptual hash."""

Command = Callable[[Path], list[str]]
"""Turns the planted folder into a command that waits for the path of its answer."""


def methods(wanted: Sequence[str], environments: Path | None) -> dict[str, Command]:
    """Return a command for each method that is wanted (): all.

    The command of a peer that is not installed raises NoAnswerError. Raises UserError for a
    method that does not exist.
    """
    known = (*OWN, *PEERS)
    for name in wanted:
        if name not in known:
            raise UserError(f"no method is called {name!r}; choose from {', '.join(known)}.")
    return {name: _command(name, environments) for name in known if name in (wanted or known)}


def _command(name: str, environments: Path | None) -> Command:
    if name in OWN:
        return lambda folder: [sys.executable, "-m", "skindx_bench.clean.own", name, str(folder)]

    def command(folder: Path) -> list[str]:
        home = environments / PEERS[name][1] if environments else None
        python = home / "bin" / "python" if home else None
        if python is None or not python.exists():
            raise NoAnswerError("not installed")
        return [str(python.absolute()), str(peers_script.__file__), name, str(folder.absolute())]

    return command
