"""Python, the compiler and its companions, and the op that DeepSpeed builds with them."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from skindx.doctor.finding import Finding, last_line, run, search_path
from skindx.gemm.record import LEARN, choice_in_force, kept_choices
from skindx.imaging.resize.bilinear import SOURCE as RESIZE
from skindx.models.exports.sparse.convolution import SOURCE as CONVOLUTION
from skindx.training.deepspeed.prebuild import COMMAND as PREBUILD


def python(version: tuple[int, ...]) -> Finding:
    text = ".".join(map(str, version))
    advice = "Install Python 3.11 or newer and make the virtual environment with it."
    return Finding("Python", version >= (3, 11), f"{text} at {sys.executable}", advice)


def compiler(*, required: bool) -> Finding:
    command = shlex.split(os.environ.get("CXX") or "c++")
    advice = "Install a C++ compiler (Debian, Ubuntu: apt install g++) or set CXX to yours."
    try:
        # A driver without its standard library answers --version, so it must read a header.
        done = run([*command, "-x", "c++", "-fsyntax-only", "-"], stdin="#include <string>\n")
        version = run([*command, "--version"]).stdout.partition("\n")[0]
    except (OSError, subprocess.TimeoutExpired):
        return Finding("C++ compiler", False, f"{command[0]} does not run", advice, required)
    detail = version if done.returncode == 0 else done.stderr.partition("\n")[0]
    return Finding("C++ compiler", done.returncode == 0, detail, advice, required)


def headers(*, required: bool) -> Finding:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    ok = header.is_file()
    advice = "Install the headers of this Python (Debian, Ubuntu: apt install python3-dev)."
    detail = str(header) if ok else f"{header} is missing"
    return Finding("Python headers", ok, detail, advice, required)


def ninja(*, required: bool) -> Finding:
    found = shutil.which("ninja", path=search_path())
    advice = "Run: pip install 'skindx[train]' (it brings ninja)."
    return Finding("ninja", found is not None, found or "not found", advice, required)


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


def prebuild(tools: Sequence[Finding]) -> Finding:
    name = "DeepSpeed's op"
    broken = [tool.name for tool in tools if not tool.ok]
    if broken:
        return Finding(name, False, "not built", f"First fix: {', '.join(broken)}.")
    print(
        "Building DeepSpeed's communication op, about a minute the first time ...",
        file=sys.stderr,
        flush=True,
    )
    advice = f"Run it yourself to see all of it: {shlex.join(PREBUILD)}"
    try:
        done = run(PREBUILD, timeout_s=900)
    except subprocess.TimeoutExpired:
        return Finding(name, False, "no end after 900 s", advice)
    if done.returncode != 0:
        return Finding(name, False, last_line(done.stderr) or "the build failed", advice)
    return Finding(name, True, last_line(done.stdout) or "built")
