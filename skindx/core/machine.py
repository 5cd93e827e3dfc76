"""This process and its machine: processor, memory, cache folder, packages; no network by itself.

The folder that somebody stands in is no place for modules: `python -m`, `python -c` and the
processes of multiprocessing look for them there first, and a `numpy.py` beside photos would be run.
PYTHONPATH, which a person sets, still counts.
"""

import ctypes
import importlib.util
import json
import math
import os
import random
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from skindx.core.errors import UserError

_VARIABLE = "PYTHONSAFEPATH"
_PATH = "PYTHONPATH"


def python_command(*arguments: str, isolated: bool = False) -> list[str]:
    """Return the command that starts a child of this interpreter; see `child_environment`.

    `isolated`: nothing of the environment and of the user's folders counts either.
    """
    return [sys.executable, "-I" if isolated else "-P", *arguments]


def child_environment(*more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment, what is added to it, and what keeps the folder out."""
    environment = dict(os.environ)
    for variables in more:
        environment |= variables
    return environment | {_VARIABLE: "1"}


def keep_folder_out(package: str) -> None:
    """Keep the current folder out of what all children of this process, and theirs, import.

    For a process of our own, not for a program that imports skindx. `package` is still found
    where it was found only by standing in its checkout.
    """
    os.environ[_VARIABLE] = "1"
    spec = find_spec(package)
    root = str(Path(spec.origin).parents[1]) if spec and spec.origin else ""
    if root and root not in sys.path:
        sys.path.append(root)
        given = os.environ.get(_PATH)
        os.environ[_PATH] = f"{given}{os.pathsep}{root}" if given else root


def spawn_context() -> SpawnContext:
    """Return multiprocessing's context of new interpreters, which do not import from the folder."""
    from multiprocessing.resource_tracker import ensure_running

    with _folder_kept_out():
        ensure_running()  # a process of its own, which the first lock of a pool would start
    return _SafeContext()


class _SafeProcess(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802 (its name in multiprocessing)
        with _folder_kept_out():
            return SpawnProcess._Popen(process_obj)


class _SafeContext(SpawnContext):
    Process = _SafeProcess


@contextmanager
def _folder_kept_out() -> Iterator[None]:
    """Set the variable for what is started inside: these processes take no environment."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            with suppress(KeyError):
                del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before


_QUIET = {
    "NO_ALBUMENTATIONS_UPDATE": "1",
    "YOLO_OFFLINE": "true",
    "YOLO_AUTOINSTALL": "false",
    "YOLO_VERBOSE": "false",
    # No eval of what a model's YAML says; our own check comes first.
    "ULTRALYTICS_SAFE_LOAD": "true",
    # With a key ultralytics streams every training run to its makers' platform.
    "ULTRALYTICS_API_KEY": "",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "SCARF_NO_ANALYTICS": "true",
    # ONNX Runtime reports to Microsoft from a thread of its own, newer ones on Linux too.
    "ORT_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_PORTS = range(15_000, 30_000)
"""Ports below the range that Linux, macOS and Windows assign to outgoing connections."""
_HUB = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def go_offline() -> None:
    """Set the variables that the packages read at import; HF_HUB_OFFLINE=0 asks for the model hub.

    Call it at every entry point, before timm, albumentations, ultralytics or gradio is imported.
    """
    os.environ.update(_QUIET)
    # Our own settings for ultralytics: the user's may hold a key, and are not ours to change.
    os.environ.setdefault("YOLO_CONFIG_DIR", str(cache_folder()))
    # OpenVINO reports every import to its vendor, and no variable stops it; without the package
    # that does so it takes a stand-in that is silent.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    for name, value in _HUB.items():
        os.environ.setdefault(name, value)  # a user who wants the hub has set it to 0


def cache_folder() -> Path:
    """Return the user's folder for what can be made or fetched again."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "skindx"


def free_port() -> int:
    """Return a port of this machine on which no process listens.

    Who listens there may start seconds later. Ports of the system's range for connections would be
    given to other processes meanwhile, so it is below that range; any port where none there is
    free. It is free at all addresses, since ranks listen at all. Raises UserError where there is no
    port at all.
    """
    both = socket.has_dualstack_ipv6()
    for port in [*random.SystemRandom().sample(_PORTS, 100), 0]:
        with socket.socket(socket.AF_INET6 if both else socket.AF_INET) as listener:
            if both:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            with suppress(OSError):
                listener.bind(("", port))
                free: int = listener.getsockname()[1]
                return free
    raise UserError(
        "no network port of this machine is free; close other programs and run the same command "
        "again."
    )


def missing_modules(*modules: str) -> list[str]:
    """Return the top-level modules that are not installed; nothing is imported."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def require_extra(extra: str, *modules: str, purpose: str, otherwise: str = "") -> None:
    """Raise UserError when a module of an optional dependency group is not installed.

    `purpose` begins the sentence ("the server"), `otherwise` ends it (", or set detector=null").
    """
    if missing := missing_modules(*modules):
        be = "is" if len(missing) == 1 else "are"
        raise UserError(
            f"{purpose} needs {', '.join(missing)}, which {be} not installed; "
            f"run {how_to_install(extra)}{otherwise}."
        )


def _has_pip() -> bool:
    # Not by its module's spec: to look for it, setuptools first puts itself in distutils' place.
    try:
        metadata.distribution("pip")
    except metadata.PackageNotFoundError:
        return False
    return True


def how_to_install(extra: str) -> str:
    """Return the command that adds an optional dependency group to this very installation.

    It is not for the eyes of a page's visitors: it has paths of this machine. No index serves
    skindx itself, so the source is the checkout, or the wheel that it was installed from.
    """
    if extras := os.environ.get("SKINDX_EXTRAS"):  # app/Dockerfile sets it
        wanted = ",".join(dict.fromkeys([*extras.split(","), extra]))
        command = f"docker build -t skindx -f app/Dockerfile --build-arg EXTRAS={wanted} ."
        return f"`{command}` in a checkout, for an image that has it"
    python = shlex.quote(sys.executable)
    pip = f"{python} -m pip install" if _has_pip() else f"uv pip install --python {python}"
    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").is_file():
        return f"`{pip} -e {shlex.quote(f'{checkout}[{extra}]')}`"
    source, place = _installed_from(), ""
    if source is None:
        from skindx import __version__

        source, place = Path(f"skindx-{__version__}-py3-none-any.whl"), " where its wheel lies"
    return f"`{pip} {shlex.quote(f'{source}[{extra}]')}`{place}"


def _installed_from() -> Path | None:
    """Return the wheel or folder that skindx was installed from (PEP 610) if it is still there."""
    try:
        text = metadata.distribution("skindx").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    url = urlsplit(json.loads(text or "{}").get("url", ""))
    path = Path(url2pathname(url.path))
    return path if url.scheme == "file" and path.exists() else None


_EXTRAS = {
    **dict.fromkeys(("albumentations", "deepspeed", "matplotlib", "psutil", "sklearn"), "train"),
    **dict.fromkeys(("gradio", "fastapi", "uvicorn", "fpdf", "cryptography"), "serve"),
    **dict.fromkeys(("pillow_heif", "prometheus_client", "starlette"), "serve"),
    **dict.fromkeys(("scrapy", "numba", "mlcroissant", "defusedxml", "brotli"), "data"),
    **dict.fromkeys(("backports", "h5py", "pycocotools", "re2"), "data"),
    "cleanlab": "audit",
    **dict.fromkeys(("onnxruntime", "rapidocr_onnxruntime"), "audit"),
    **dict.fromkeys(("mlflow", "tensorboard", "wandb"), "track"),
    **dict.fromkeys(("nncf", "onnx", "openvino"), "runtimes"),
    **dict.fromkeys(("pyvips", "zarr", "sqlalchemy"), "scan"),
    **dict.fromkeys(("fhir", "gdcm", "highdicom", "pydicom"), "clinic"),
    **dict.fromkeys(("pylibjpeg", "openjpeg", "rle"), "clinic"),
    **dict.fromkeys(("nudenet", "ultralytics"), "detect"),
    **{"ray": "cluster", "psycopg": "postgresql"},
}
"""Module that the core lacks -> one of the groups that bring it."""


def what_is_missing(error: ModuleNotFoundError) -> str | None:
    """Return a sentence for a module of an optional dependency group; None for any other one."""
    module = (error.name or "").partition(".")[0]
    if module not in _EXTRAS:
        return None
    return f"this needs {module}, which is not installed; run {how_to_install(_EXTRAS[module])}."


ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "POLARS_MAX_THREADS",
        "RAYON_NUM_THREADS",
    ),
    "1",
)
"""Environment of a process whose libraries must not start a thread for each core."""

# glibc's mallopt: <malloc.h>
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_LARGE = 32 << 20  # glibc's largest _MMAP_THRESHOLD


def keep_freed_memory(*, large: bool = True) -> bool:
    """Tell glibc not to give freed memory back to the system; False where there is no glibc.

    Without `large`, arrays of 32 MiB and more go back: for processes whose memory is limited.

    By default every activation above a threshold is mapped again and faulted in page by page, in
    each step. MobileNetV2 at 160 px trains 1.4 to 1.8 times as fast without that, at the same
    peak memory; a scan's tiles spend a fifth of their time on it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    if not large:
        return bool(mallopt(_MMAP_THRESHOLD, _LARGE) and mallopt(_TRIM_THRESHOLD, 2 * _LARGE))
    return bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))


_CGROUPS = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def cpu_count() -> int:
    """Return how many cores this process may use: by its affinity and its cgroups' quotas."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it, macOS does not
    cores: int = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _cgroup_quota())))


def _cgroup_quota() -> float:
    """Return the least quota, in cores, of this process's cgroup and those above it.

    Version 2 (`cpu.max`: quota and period in microseconds) and version 1 (`cpu.cfs_quota_us`). A
    container sees its own cgroup at the root, so a path that is not there is no error.
    """
    quota = math.inf
    for folder in _cgroup_folders():
        try:
            if (folder / "cpu.max").exists():
                most, period = (folder / "cpu.max").read_text().split()
            else:
                most = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            if (cores := float(most) / float(period)) > 0:
                quota = min(quota, cores)
        except (OSError, ValueError, ZeroDivisionError):  # "max": there is no quota
            continue
    return quota


def _cgroup_folders() -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = _CGROUPS / controllers if controllers else _CGROUPS
        inside = root / path.lstrip("/")
        folders += [inside, *(folder for folder in inside.parents if folder.is_relative_to(root))]
    return folders


def free_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUPS) -> int:
    """Return the bytes that this process may still take: the machine's, or less in a container."""
    if not meminfo.is_file():
        # No Linux: half of what is built in is a careful guess.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    free = _table(meminfo)["MemAvailable:"] * 1024
    limit, used = cgroup / "memory.max", cgroup / "memory.current"
    if limit.is_file() and used.is_file() and (text := limit.read_text().strip()) != "max":
        # Files in the page cache count as used, but give way.
        cached = _table(cgroup / "memory.stat").get("inactive_file", 0)
        free = min(free, int(text) - int(used.read_text()) + cached)
    return max(0, free)


def _table(file: Path) -> Mapping[str, int]:
    rows = (line.split() for line in file.read_text(encoding="utf-8").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) >= 2}


CPU_INFO = Path("/proc/cpuinfo")


@cache
def cpu_flags() -> frozenset[str]:
    """Return the names of the CPU's instruction sets as Linux lists them; none on other systems.

    Without those that ONEDNN_MAX_CPU_ISA keeps torch and OpenVINO from.
    """
    flags = cpu_fact("flags").split()
    most = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    if not most.startswith(("SSE", "AVX")) or most.startswith(("AVX512", "AVX10")):
        return frozenset(flags)
    return frozenset(flag for flag in flags if not flag.startswith(("avx512", "amx", "avx_vnni")))


def cpu_fact(name: str) -> str:
    """Return a value that Linux lists for the first core; "" where there is none."""
    if not CPU_INFO.is_file():
        return ""
    for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def processor_facts() -> list[object]:
    """Return the facts on which the speed of a machine depends, without its instruction sets."""
    text = CPU_INFO.read_text(encoding="utf-8", errors="replace") if CPU_INFO.is_file() else ""
    model = [line for line in text.splitlines() if line.startswith("model name")][:1]
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:  # none, or one that was built in place
        torch = ""
    return [model, cpu_count(), torch]
