"""The container's files: Debian's packages by debootstrap, or the host's own, read-only."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from skindx.core.errors import UserError
from skindx.core.machine import ONE_THREAD
from skindx_bench.container.runtimes import Inside
from skindx_bench.harness.environments import SOURCES

_LIMIT_S = 900
PACKAGES = (
    *("libgomp1", "libstdc++6", "zlib1g", "libbz2-1.0", "liblzma5", "libssl3", "libffi8"),
    *("libsqlite3-0", "libreadline8", "libexpat1", "libuuid1"),
)
"""What Python and the project's wheels link to."""


def find_root(wanted: Path | None, build: Path | None) -> tuple[Path, str]:
    """Return the root file system and a sentence on it.

    `wanted` is one that exists. Otherwise debootstrap makes one in `build`; without it, without
    root, or without a mirror, the host's files are taken.
    """
    if wanted is not None:
        return wanted, "Root file system: " + (
            "the host's own files, read-only." if wanted == Path("/") else f"{wanted.name}, given."
        )
    if build is None:
        return Path("/"), "Root file system: the host's own files, read-only."
    if (build / "bin/sh").exists():
        return build, "Root file system: Debian's packages, built by debootstrap before."
    why = _debootstrap(build)
    if why:
        return Path("/"), f"Root file system: the host's own files, read-only ({why})."
    return build, "Root file system: Debian's packages, built by debootstrap."


def see(root: Path, work: Path, threads: int) -> Inside:
    """Return what a container sees: this Python and its packages, this skindx, a work folder.

    All but the last are the host's, read-only; the packages are those of the project's lock where
    the host's are. Raises UserError for a root file system that has no place for them.
    """
    sources = [package.resolve().parent for package in SOURCES]
    needed = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), *sources}
    # A folder below another one comes with it.
    folders = tuple(
        sorted(
            folder
            for folder in needed
            if folder != Path("/usr") and not any(other in folder.parents for other in needed)
        )
    )
    environment = {
        **dict.fromkeys(ONE_THREAD, str(threads)),
        "PATH": "/usr/bin:/bin",
        "HOME": str(work),
        "TMPDIR": str(work),
        "PYTHONPATH": os.pathsep.join(map(str, sources)),
        "LC_ALL": "C.UTF-8",
    }
    if root != Path("/"):
        _make_places(root, (*folders, work))
    return Inside(root, folders, (work,), environment)


def _make_places(root: Path, folders: Sequence[Path]) -> None:
    """Make the folders on which the host's are mounted: inside, the root is read-only."""
    for folder in folders:
        place = root / str(folder).lstrip("/")
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"rootfs {root} has no {folder} and cannot get it ({error}); make that folder in "
                "it, or set rootfs=/ for the host's own files."
            ) from None


def _debootstrap(folder: Path) -> str:
    """Build a minimal Debian; return why it could not be, or an empty string."""
    if shutil.which("debootstrap") is None:
        return "debootstrap is not installed"
    if os.geteuid() != 0:
        return "debootstrap needs root"
    beside = folder.with_name(folder.name + ".building")
    shutil.rmtree(beside, ignore_errors=True)
    beside.parent.mkdir(parents=True, exist_ok=True)
    included = ",".join(PACKAGES)
    command = ["debootstrap", "--variant=minbase", f"--include={included}", _suite(), str(beside)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"debootstrap took more than {_LIMIT_S} s"
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        return f"debootstrap failed: {lines[-1][:200]}"
    beside.rename(folder)
    return ""


def _suite() -> str:
    """Return the host's own release of Debian, or stable."""
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return "stable"
    values = dict(line.partition("=")[::2] for line in lines)
    return values.get("VERSION_CODENAME", "stable") if values.get("ID") == "debian" else "stable"
