"""Checks that torch works here, and that its build matches the accelerator's driver."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from skindx.doctor.finding import Finding, last_line, run

OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
"""CUDA major version of a torch build -> the oldest NVIDIA driver on Linux that runs it
(CUDA Compatibility guide, NVIDIA, minor version compatibility)."""

# Run in a child process: a broken torch may crash the interpreter instead of raising.
_TORCH_PROBE = """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
    found = torch.accelerator.current_accelerator(check_available=True)
    facts = {"version": torch.__version__, "cuda": torch.version.cuda, "device": "", "error": ""}
    if found is not None:
        facts["device"] = found.type
        try:
            torch.ones(2, device=found).sum().item()
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
        done = run([sys.executable, "-c", _TORCH_PROBE], timeout_s=300)
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


def torch_finding(facts: TorchFacts, driver: str) -> Finding:
    """Judge torch's own account against the NVIDIA driver; see `torch_facts`, `nvidia_driver`."""
    name = "torch and accelerator"
    if not facts.version:
        advice = "Run: pip install --force-reinstall torch torchvision"
        return Finding(name, False, f"torch does not import: {facts.error}", advice)
    torch = f"torch {facts.version}"
    if facts.error:
        advice = "This GPU needs another torch build: choose one at pytorch.org/get-started."
        detail = f"{torch}: {facts.device} fails ({last_line(facts.error)})"
        return Finding(name, False, detail, advice)
    if facts.device:
        driven = f", driver {driver}" if driver else ""
        return Finding(name, True, f"{torch} on {facts.device}{driven}")
    if not driver:
        return Finding(name, True, f"{torch}, no accelerator: everything runs on the CPU")
    detail = f"{torch} sees no GPU, yet there is an NVIDIA driver ({driver})"
    return Finding(name, False, detail, _driver_advice(facts, driver), required=False)


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
    said = f" torch says: {facts.warnings[-1]}" if facts.warnings else ""
    return f"Run nvidia-smi; in a container, start it with its GPUs (docker: --gpus all).{said}"
