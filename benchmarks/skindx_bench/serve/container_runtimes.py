"""Container runtimes that work here, and the container's files: Debian's or the host's own."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from skindx.core.errors import UserError
from skindx.core.machine import ONE_THREAD
from skindx_bench.harness.environments import SOURCES

_PROBE_S = 60


@dataclass(frozen=True)
class Inside:
    """What a container sees: a root file system, read-only folders of the host, writable ones."""

    root: Path
    """`/` is the host's own files, read-only."""
    read_only: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class Runtime(Protocol):
    """Makes the command line that runs a command inside."""

    name: str

    def command(self, inside: Inside, command: Sequence[str], bundle: Path) -> list[str]:
        """Return the command line; `bundle` is an empty folder for what the runtime reads."""


class _Engine:
    """podman takes a root file system as it is, docker imports it as an image."""

    def __init__(self, name: str) -> None:
        self.name = name

    def command(self, inside: Inside, command: Sequence[str], bundle: Path) -> list[str]:
        line = [self.name, "run", "--rm", "--interactive", "--network=none"]
        for folder in inside.read_only:
            line += ["--volume", f"{folder}:{folder}:ro"]
        for folder in inside.writable:
            line += ["--volume", f"{folder}:{folder}"]
        for key, value in inside.environment.items():
            line += ["--env", f"{key}={value}"]
        if self.name == "podman":
            return [*line, "--read-only", "--rootfs", str(inside.root), *command]
        return [*line, _import_image(inside.root), *command]


class _Crun:
    """crun: the runtime below podman, with a configuration of the Open Container Initiative."""

    name = "crun"

    def command(self, inside: Inside, command: Sequence[str], bundle: Path) -> list[str]:
        mounts: list[dict[str, object]] = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {
                "destination": "/dev",
                "type": "tmpfs",
                "source": "tmpfs",
                "options": ["nosuid", "mode=755"],
            },
            {"destination": "/dev/shm", "type": "tmpfs", "source": "shm"},  # noqa: S108
        ]
        for folders, mode in ((inside.read_only, "ro"), (inside.writable, "rw")):
            mounts += [
                {
                    "destination": str(folder),
                    "type": "bind",
                    "source": str(folder),
                    "options": ["rbind", mode],
                }
                for folder in folders
            ]
        names = ("pid", "ipc", "uts", "mount", "network")
        configuration = {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False,
                "cwd": "/",
                "args": list(command),
                "env": [f"{key}={value}" for key, value in inside.environment.items()],
                "user": {"uid": 0, "gid": 0},
                "noNewPrivileges": True,
            },
            "root": {"path": str(inside.root), "readonly": True},
            "mounts": mounts,
            "linux": {"namespaces": [{"type": name} for name in names]},
        }
        bundle.mkdir(parents=True, exist_ok=True)
        (bundle / "config.json").write_text(json.dumps(configuration))
        return [
            "crun",
            "--cgroup-manager=disabled",
            "run",
            "--bundle",
            str(bundle),
            f"skindx-{bundle.name}",
        ]


class _Bubblewrap:
    """bubblewrap: namespaces around one command, no daemon, no configuration."""

    name = "bubblewrap"

    def command(self, inside: Inside, command: Sequence[str], bundle: Path) -> list[str]:
        line = ["bwrap", "--ro-bind", str(inside.root), "/", "--proc", "/proc", "--dev", "/dev"]
        line += ["--unshare-all", "--die-with-parent", "--clearenv", "--chdir", "/"]
        # Over the host's own files a bind would only say again what is there.
        for folder in inside.read_only if inside.root != Path("/") else ():
            line += ["--ro-bind", str(folder), str(folder)]
        for folder in inside.writable:
            line += ["--bind", str(folder), str(folder)]
        for key, value in inside.environment.items():
            line += ["--setenv", key, value]
        return [*line, *command]


RUNTIMES: dict[str, Runtime] = {
    "podman": _Engine("podman"),
    "docker": _Engine("docker"),
    "crun": _Crun(),
    "bubblewrap": _Bubblewrap(),
}
"""Name -> runtime, in the order in which they are tried."""

PROGRAMS = {"podman": "podman", "docker": "docker", "crun": "crun", "bubblewrap": "bwrap"}
"""Runtime -> the program that it is."""


@dataclass(frozen=True)
class Chosen:
    """The first runtime that ran the probe, and why those before it did not."""

    runtime: Runtime
    refused: Mapping[str, str]


def choose_runtime(wanted: str, inside: Inside, probe: Sequence[str]) -> Chosen:
    """Return the first runtime that runs `probe` inside, or the wanted one.

    Raises UserError that says of every runtime why it cannot run here.
    """
    refused: dict[str, str] = {}
    for name, runtime in RUNTIMES.items():
        if wanted not in ("auto", name):
            continue
        why = _try(runtime, inside, probe)
        if not why:
            return Chosen(runtime, refused)
        refused[name] = why
    reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
    raise UserError(
        f"no container can run here ({reasons}). On Debian: `apt install bubblewrap`; inside a "
        "container, allow it new user and mount namespaces."
    )


def _try(runtime: Runtime, inside: Inside, probe: Sequence[str]) -> str:
    """Return why a runtime does not run the probe, or an empty string when it does."""
    if shutil.which(PROGRAMS[runtime.name]) is None:
        return "not installed"
    with tempfile.TemporaryDirectory(prefix="skindx-probe-") as folder:
        try:
            command = runtime.command(inside, probe, Path(folder) / Path(folder).name)
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=_PROBE_S,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return f"no answer in {_PROBE_S} s"
        except (OSError, UserError) as error:
            return str(error)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines() or ["no message"]
    return f"ended with {done.returncode}: {lines[-1][:200]}"


def _import_image(root: Path) -> str:
    """Import a root file system as an image of docker, once for each of its states.

    Raises UserError for the host's own files, which are no root file system of their own.
    """
    if root == Path("/"):
        raise UserError("docker runs images only; set rootfs to a folder of Debian's files")
    name = f"skindx-bench:{root.stat().st_mtime_ns:x}"
    known = subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False)
    if known.returncode == 0:
        return name
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
        done = subprocess.run(
            ["docker", "import", "-", name],
            stdin=tar.stdout,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise UserError(f"docker import failed: {(done.stderr.strip() or 'no message')[-200:]}")
    return name


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
