"""`skindx doctor`: is this machine ready, and if not, what to do about it."""

import importlib.metadata
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skindx.core.compiled_loops import CppSource
from skindx.core.machine import how_to_install, python_command
from skindx.data.loader.crops import SOURCE as CROPS
from skindx.imaging.hashes import SOURCE as THUMBNAILS
from skindx.imaging.resize import SOURCE as RESIZE


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One thing that was checked; `advice` is how to fix it when it is not `ok`.

    Work cannot begin while a `required` finding is not ok; any other is a note.
    """

    name: str
    ok: bool
    detail: str
    advice: str = ""
    required: bool = True


def installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def run(
    command: Sequence[str], *, stdin: str = "", timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=timeout_s,
    )


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
"""CUDA major version of a torch build -> the oldest NVIDIA driver on Linux that runs it
(CUDA Compatibility guide, NVIDIA, minor version compatibility)."""

# Run in a child process: a broken torch may crash the interpreter instead of raising.
_TORCH_PROBE = """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    facts = {"version": torch.__version__, "cuda": torch.version.cuda, "device": "", "error": ""}
    if accelerator is not None:
        facts["device"] = accelerator.type
        try:
            torch.ones(2, device=accelerator).sum().item()
        except Exception as error:
            facts["error"] = str(error)
    facts["warnings"] = [str(warning.message) for warning in caught]
print("FACTS" + json.dumps(facts))
"""


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """Version and devices by torch; no `version` means that it does not import."""

    version: str = ""
    cuda: str | None = None
    """CUDA version of the build, None for a build without CUDA."""
    device: str = ""
    """Type of the accelerator in use: cuda, mps, xpu …; empty for none."""
    error: str = ""
    """Why the import, or a first sum on the device, failed."""
    warnings: tuple[str, ...] = ()


def torch_facts() -> TorchFacts:
    """Ask torch, in a child process."""
    try:
        done = run(python_command("-c", _TORCH_PROBE), timeout_s=300)
    except subprocess.TimeoutExpired:
        return TorchFacts(error="importing torch took more than 300 s")
    _, mark, facts = done.stdout.partition("FACTS")
    if not mark:
        return TorchFacts(error=last_line(done.stderr) or f"exit code {done.returncode}")
    return TorchFacts(**json.loads(facts))


def nvidia_driver() -> str:
    """Return the version of the NVIDIA driver, "" for none, a message where it does not answer."""
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            done = run(query)
        except (OSError, subprocess.TimeoutExpired):
            return "not answering"
        return last_line(done.stdout) if done.returncode == 0 else "not answering"
    return "of unknown version" if Path("/proc/driver/nvidia/version").exists() else ""


def torch_finding(facts: TorchFacts, driver: str) -> DoctorFinding:
    """Judge torch's own account against the NVIDIA driver; see `torch_facts`, `nvidia_driver`."""
    name = "torch and accelerator"
    if not facts.version:
        advice = "Run: pip install --force-reinstall torch torchvision"
        return DoctorFinding(name, False, f"torch does not import: {facts.error}", advice)
    torch = f"torch {facts.version}"
    if facts.error:
        advice = "This GPU needs another torch build: choose one at pytorch.org/get-started."
        detail = f"{torch}: {facts.device} fails ({last_line(facts.error)})"
        return DoctorFinding(name, False, detail, advice)
    if facts.device:
        driven = f", driver {driver}" if driver else ""
        return DoctorFinding(name, True, f"{torch} on {facts.device}{driven}")
    if not driver:
        return DoctorFinding(name, True, f"{torch}, no accelerator: everything runs on the CPU")
    detail = f"{torch} sees no GPU, yet there is an NVIDIA driver ({driver})"
    return DoctorFinding(name, False, detail, _driver_advice(facts, driver), required=False)


def _driver_advice(facts: TorchFacts, driver: str) -> str:
    if facts.cuda is None:
        return "This torch is built for the CPU: install a CUDA build (pytorch.org/get-started)."
    oldest = OLDEST_DRIVER.get(int(facts.cuda.partition(".")[0]))
    major = driver.partition(".")[0]
    if oldest and major.isdigit() and int(major) < oldest:
        return (
            f"The driver is too old for CUDA {facts.cuda}: update it to {oldest} or newer, "
            "or install a torch build for an older CUDA."
        )
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        return f"CUDA_VISIBLE_DEVICES={hidden!r} may hide the GPU: unset it."
    warning = f" torch says: {facts.warnings[-1]}" if facts.warnings else ""
    return f"Run nvidia-smi; in a container, start it with its GPUs (docker: --gpus all).{warning}"


DISTRIBUTIONS = {
    extra: tuple(names.split())
    for extra, names in {
        "data": "backports-zstd brotli defusedxml google-re2 h5py matplotlib mlcroissant "
        "numba pycocotools scrapy",
        "audit": "cleanlab onnxruntime rapidocr-onnxruntime scikit-learn",
        "train": "albumentations deepspeed matplotlib numba psutil scikit-learn setuptools "
        "sqlalchemy",
        "track": "mlflow-skinny tensorboard wandb",
        "detect": "nudenet onnxruntime pycocotools ultralytics",
        "serve": "cryptography fastapi fpdf2 gradio pillow-heif prometheus-client "
        "python-multipart sqlalchemy uvicorn",
        "runtimes": "nncf onnx onnxruntime openvino",
        "scan": "pyvips pyvips-binary sqlalchemy zarr",
        "clinic": "fhir-resources highdicom pydicom pylibjpeg pylibjpeg-openjpeg pylibjpeg-rle "
        "python-gdcm",
    }.items()
}
"""What each extra installs, as in pyproject.toml."""

OPENCV = (
    "opencv-python",
    "opencv-contrib-python",
    "opencv-python-headless",
    "opencv-contrib-python-headless",
)
"""The distributions that own the module `cv2`."""


def extras() -> list[DoctorFinding]:
    findings = []
    for extra, names in DISTRIBUTIONS.items():
        have = {name: installed(name) for name in names}
        missing = [name for name, version in have.items() if version is None]
        detail = ", ".join(f"{name} {version or 'missing'}" for name, version in have.items())
        advice = f"Run: {how_to_install(extra)}"
        findings.append(
            DoctorFinding(f"extra {extra}", not missing, detail, advice, required=False)
        )
    return findings


def opencv() -> DoctorFinding:
    have = [f"{name} {version}" for name in OPENCV if (version := installed(name))]
    clashing = " ".join(name for name in OPENCV if name != "opencv-python-headless")
    headless = "pip install --force-reinstall --no-deps opencv-python-headless"
    advice = (
        f"They overwrite each other's cv2. Run: pip uninstall -y {clashing} && {headless}"
        if have
        else f"Run: {headless}"
    )
    return DoctorFinding("OpenCV", len(have) == 1, " beside ".join(have) or "not installed", advice)


MIN_FREE_GB = 5.0


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def disk(name: str, folder: Path) -> DoctorFinding:
    free_gb = shutil.disk_usage(_existing(folder)).free / 1e9
    advice = f"Free some space: {MIN_FREE_GB:.0f} GB is little for images and checkpoints."
    return DoctorFinding(name, free_gb >= MIN_FREE_GB, f"{free_gb:.1f} GB free, {folder}", advice)


def writable(folder: Path) -> DoctorFinding:
    advice = f"Make {folder} writable or point XDG_CACHE_HOME at a folder that is."
    try:
        with tempfile.TemporaryFile(dir=folder if folder.exists() else _existing(folder)):
            return DoctorFinding("cache", True, f"{folder} is writable")
    except OSError as error:
        return DoctorFinding("cache", False, f"{folder}: {error.strerror}", advice)


def _existing(path: Path) -> Path:
    """Return `path` or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())


def python(version: tuple[int, ...]) -> DoctorFinding:
    text = ".".join(map(str, version))
    advice = "Install Python 3.11 or newer and make the virtual environment with it."
    return DoctorFinding("Python", version >= (3, 11), f"{text} at {sys.executable}", advice)


def compiler() -> DoctorFinding:
    command = shlex.split(os.environ.get("CXX") or "c++")
    advice = (
        "skindx's own kernels and engine.compile need one (Debian, Ubuntu: apt install g++); "
        "CXX names another."
    )
    try:
        # A driver without its standard library answers --version, so it must read a header.
        done = run([*command, "-x", "c++", "-fsyntax-only", "-"], stdin="#include <string>\n")
        version = run([*command, "--version"]).stdout.partition("\n")[0]
    except (OSError, subprocess.TimeoutExpired):
        return DoctorFinding(
            "C++ compiler", False, f"{command[0]} does not run", advice, required=False
        )
    detail = version if done.returncode == 0 else done.stderr.partition("\n")[0]
    return DoctorFinding("C++ compiler", done.returncode == 0, detail, advice, required=False)


def headers() -> DoctorFinding:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    ok = header.is_file()
    advice = "engine.compile needs them on a CPU (Debian, Ubuntu: apt install python3-dev)."
    detail = str(header) if ok else f"{header} is missing"
    return DoctorFinding("Python headers", ok, detail, advice, required=False)


def _kernel(name: str, source: CppSource, use: str) -> DoctorFinding:
    advice = f"{use} a C++ compiler (Debian, Ubuntu: apt install g++)."
    return DoctorFinding(name, *source.state(), advice, required=False)


def chromium() -> DoctorFinding:
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    advice = "Only the browser tests need it (Debian: apt install chromium)."
    detail = program or "not found"
    return DoctorFinding("chromium", program is not None, detail, advice, required=False)


def examine() -> list[DoctorFinding]:
    """Look at everything skindx needs. Nothing is installed, compiled or changed."""
    return [
        python(sys.version_info[:3]),
        compiler(),
        headers(),
        torch_finding(torch_facts(), nvidia_driver()),
        *extras(),
        opencv(),
        chromium(),
        _kernel("resize of images", RESIZE, "Trainings load images faster with"),
        _kernel("drawing of crops", CROPS, "Trainings load images faster with"),
        _kernel("thumbnails of hashes", THUMBNAILS, "Builds find copies faster with"),
        disk("disk here", Path.cwd()),
        disk("disk of the cache", cache()),
        writable(cache()),
    ]


def render(findings: Sequence[DoctorFinding]) -> str:
    """Return the findings as a table in plain text, as wide as the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "check", "found", "what to do")
    for finding in findings:
        mark = "ok" if finding.ok else "FIX" if finding.required else "note"
        # Text: a path in square brackets is no markup.
        table.add_row(
            mark, finding.name, Text(finding.detail), Text("" if finding.ok else finding.advice)
        )
    buffer = io.StringIO()
    Console(file=buffer, width=shutil.get_terminal_size((100, 24)).columns).print(table)
    return buffer.getvalue()
