"""Python, the compiler, the kernels that it compiles, chromium."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from skindx.data.loader.drawing import SOURCE as CROPS
from skindx.doctor.finding import Finding, run
from skindx.gemm.record import LEARN, choice_in_force, kept_choices
from skindx.imaging.resize.bilinear import SOURCE as RESIZE
from skindx.models.exports.sparse.convolution import SOURCE as CONVOLUTION


def python(version: tuple[int, ...]) -> Finding:
    text = ".".join(map(str, version))
    advice = "Install Python 3.11 or newer and make the virtual environment with it."
    return Finding("Python", version >= (3, 11), f"{text} at {sys.executable}", advice)


def compiler() -> Finding:
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
        return Finding("C++ compiler", False, f"{command[0]} does not run", advice, required=False)
    detail = version if done.returncode == 0 else done.stderr.partition("\n")[0]
    return Finding("C++ compiler", done.returncode == 0, detail, advice, required=False)


def headers() -> Finding:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    ok = header.is_file()
    advice = "engine.compile needs them on a CPU (Debian, Ubuntu: apt install python3-dev)."
    detail = str(header) if ok else f"{header} is missing"
    return Finding("Python headers", ok, detail, advice, required=False)


def sparse_kernel() -> Finding:
    ok, detail = CONVOLUTION.state()
    advice = (
        "Only exports to sparse use it; install a C++ compiler (Debian, Ubuntu: apt install g++)."
    )
    return Finding("sparse convolutions", ok, detail, advice, required=False)


def resize_kernel() -> Finding:
    ok, detail = RESIZE.state()
    advice = "Trainings load images faster with a C++ compiler (Debian, Ubuntu: apt install g++)."
    return Finding("resize of images", ok, detail, advice, required=False)


def crop_kernel() -> Finding:
    ok, detail = CROPS.state()
    advice = "Trainings load images faster with a C++ compiler (Debian, Ubuntu: apt install g++)."
    return Finding("drawing of crops", ok, detail, advice, required=False)


def products() -> Finding:
    found = choice_in_force()
    gpus = kept_choices("cuda")
    detail = found.reason + f"; {gpus} in the cache for GPUs" * bool(gpus)
    advice = f"Learn again: {LEARN}"
    return Finding("products A B^T", found.usable, detail, advice, required=False)


def chromium() -> Finding:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    advice = "Only the browser tests need it (Debian: apt install chromium)."
    return Finding("chromium", found is not None, found or "not found", advice, required=False)
