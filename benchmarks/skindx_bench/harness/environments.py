"""Virtual environments of peers, so that what they need clashes with nothing of ours.

`python -m skindx_bench.harness.environments FOLDER PEER ...` makes those that are named. Some peers
forbid commercial use (SelfClean: CC BY-NC 4.0; fastdup: CC BY-NC-ND 4.0): read their licences.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import skindx
import skindx_bench
import skindx_methods
from skindx.core.atomic_files import write_text
from skindx.core.errors import UserError
from skindx.core.machine import python_command

_MADE = "skindx-environment.txt"
"""In an environment that is whole: the digest of what it was made of."""


SOURCES = tuple(
    Path(str(package.__file__)).absolute().parent
    for package in (skindx, skindx_methods, skindx_bench)
)
"""Folders of skindx, of the methods kit and of the lab."""


class NotInstalledError(Exception):
    """An environment could not be made; the text says why in one sentence."""


@dataclass(frozen=True)
class PeerEnvironment:
    """An environment of its own for one peer, made by uv, or by venv and pip where uv is missing.

    `needs` is a file of locked requirements, or a list of packages. With `sees_ours` it also has
    the packages of this installation, and takes nothing but `needs`. With `has_source` it can
    import those modules of skindx and of the lab that need nothing else.
    """

    name: str
    needs: Path | tuple[str, ...]
    sees_ours: bool = False
    has_source: bool = False

    def python(self, folder: Path) -> Path:
        """Return its interpreter, in its place under `folder`."""
        return folder.absolute() / self.name / "bin" / "python"

    def make(self, folder: Path) -> Path:
        """Make it where it is not whole yet, and return its interpreter.

        What else is in its folder stays. Raises NotInstalledError.
        """
        python = self.python(folder)
        home = python.parent.parent
        made, digest = home / _MADE, self._digest()
        if not (made.is_file() and made.read_text().strip() == digest and python.exists()):
            made.unlink(missing_ok=True)
            home.parent.mkdir(parents=True, exist_ok=True)
            create, install = _installer(home, python)
            needs = self.needs if isinstance(self.needs, tuple) else ("-r", str(self.needs))
            self._run(create)
            self._run([*install, *(("--no-deps",) if self.sees_ours else ()), *needs])
            self._link(home)
            write_text(made, digest + "\n")
        return python

    def _digest(self) -> str:
        needs = self.needs
        text = "\n".join(needs) if isinstance(needs, tuple) else needs.read_text()
        ours = f"{self.sees_ours} {self.has_source} {_purelib()} {SOURCES} {sys.version}"
        return hashlib.sha256(f"{text}\n{ours}".encode()).hexdigest()

    def _link(self, home: Path) -> None:
        (site,) = home.glob("lib/python*/site-packages")
        if self.sees_ours:
            write_text(site / "skindx-packages.pth", f"{_purelib()}\n")
        for package in SOURCES:
            source = site / package.name
            source.unlink(missing_ok=True)
            if self.has_source:
                source.symlink_to(package, target_is_directory=True)

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[-300:]
            raise NotInstalledError(f"{self.name} could not be installed: {said}")


def _purelib() -> str:
    return sysconfig.get_path("purelib")


def _installer(home: Path, python: Path) -> tuple[list[str], list[str]]:
    """Return the commands that create an environment and that install into it."""
    uv = python_command("-m", "uv") if importlib.util.find_spec("uv") else []
    if not uv and (found := shutil.which("uv")):
        uv = [found]
    if uv:
        create = [*uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(home)]
        return create, [*uv, "pip", "install", "--quiet", "--python", str(python)]
    create = python_command("-m", "venv", str(home))
    return create, [str(python), "-m", "pip", "install", "--quiet"]


_LOCKS = Path(__file__).parents[1] / "locks"
"""`uv pip compile --universal --generate-hashes` wrote them from the names in their first lines."""
_SAHI = ("sahi", "shapely", "terminaltables", "fire", "pybboxes", "tqdm", "click", "requests")

ENVIRONMENTS = {
    made.name: made
    for made in (
        PeerEnvironment("imagededup", ("imagededup", "setuptools<81")),
        PeerEnvironment("cleanvision", ("cleanvision",)),
        PeerEnvironment("selfclean", ("selfclean", "timm", "setuptools<81")),
        PeerEnvironment("fastdup", ("fastdup",)),
        # SAHI and Fabric run the torch and ultralytics of this installation.
        PeerEnvironment("sahi", _SAHI, sees_ours=True),
        PeerEnvironment("fabric", _LOCKS / "fabric.txt", sees_ours=True, has_source=True),
        PeerEnvironment("jax", _LOCKS / "jax.txt", has_source=True),
        PeerEnvironment("tensorflow", _LOCKS / "tensorflow.txt", has_source=True),
    )
}
"""Peer -> its environment: four of `clean`, one of `scan`, three of `frameworks`."""
CLEAN_PEERS = tuple(ENVIRONMENTS)[:4]


def cache_folder() -> Path:
    """Return where the environments of frameworks are kept by default."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "skindx" / "frameworks"


def make_environments(folder: Path, names: Sequence[str]) -> int:
    """Make the environments that are named; return how many could not be made.

    Raises UserError for a peer that does not exist.
    """
    for name in names:
        if name not in ENVIRONMENTS:
            raise UserError(f"there is no peer {name!r}; choose from {', '.join(ENVIRONMENTS)}.")
    failed = 0
    for name in names:
        try:
            ENVIRONMENTS[name].make(folder)
        except NotInstalledError as error:
            failed += 1
            print(error)
        else:
            print(f"{name}: installed in {folder}")
    return failed


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(f"{__doc__}\nPeers: {', '.join(ENVIRONMENTS)}.")
    raise SystemExit(make_environments(Path(sys.argv[1]), sys.argv[2:]))
