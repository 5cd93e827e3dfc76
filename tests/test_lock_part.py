"""A part of the lock: what some extras need, with all hashes, and without CUDA."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")


def part(*wanted: str) -> str:
    command = [sys.executable, ROOT / ".ci/lock_part.py", *wanted]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def names(lock: str) -> set[str]:
    return set(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE))


def test_with_nothing_named_it_is_the_whole_lock() -> None:
    assert LOCK.endswith(part())
    assert names(part()) == names(LOCK)


def test_without_torch_nothing_of_cuda_is_left() -> None:
    assert names(part()) - names(part("--no-torch")) == {
        name
        for name in names(LOCK)
        if name in ("torch", "torchvision", "triton")
        or (name.startswith(("cuda-", "nvidia-")) and name != "nvidia-ml-py")
    }


def test_an_extra_brings_what_its_packages_need_and_no_other_extra() -> None:
    served = part("serve", "uv")
    assert {"gradio", "starlette", "uv", "torch", "sympy"} <= names(served)
    assert not names(served) & {"ultralytics", "deepspeed", "ray", "openvino", "sphinx", "pytest"}
    entry = re.search(r"^gradio==.*?(?=^[\w.-]+==)", LOCK, re.MULTILINE | re.DOTALL)
    assert entry
    assert entry[0] in served
