"""Packages for a machine that has torch and a GPU but no network: they travel as wheels.

`python -m skindx_bench.devices.wheels fill FOLDER` downloads them in the versions of the lock;
`... install FOLDER TARGET` unpacks there what the machine lacks, and names what is missing.
It needs the standard library, pip and packaging alone.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from email.parser import Parser
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from skindx.core.machine import python_command

MOST_BYTES = 64 << 20
"""All wheels together."""

CARRIED = (
    "albucore",
    "albumentations",
    "annotated-types",
    "deepspeed",
    "defusedxml",
    "hjson",
    "jinja2",
    "msgpack",
    "ninja",
    "psutil",
    "py-cpuinfo",
    "pydantic",
    "pydantic-core",
    "pytest",
    "pytest-timeout",
    "hypothesis",
    "sortedcontainers",
    "simplejpeg",
    "simsimd",
    "stringzilla",
    "timm",
    "typer",
    "typing-extensions",
    "typing-inspection",
)
"""What the check needs beside torch, torchvision and numerical packages: small wheels."""

EXPECTED = (
    "torch",
    "torchvision",
    "numpy",
    "scipy",
    "scikit-learn",
    "opencv-python-headless",
    "pillow",
    "pyarrow",
    "pyyaml",
    "rich",
    "safetensors",
    "numba",
    *CARRIED,
)
"""What the machine must have once the wheels are there."""

SKIPPED = {
    "faiss-cpu": "the benchmark of hashes has no row of it",
    "gradio": "the page itself is not started, its predictor is",
    "onnxruntime": "too large to travel; where it is installed its test runs",
    "onnx": "too large to travel; where it is installed its test runs",
    "openvino": "too large to travel",
    "ray": "too large to travel",
    "ultralytics": "no boxes are looked for",
}
"""What does not travel, and why."""

_PYTHON = "3.12"
_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)] + [
    f"manylinux{year}_x86_64" for year in (2014, 2010, 1)
]


def main(arguments: Sequence[str]) -> int:
    """Run one of the two commands."""
    if len(arguments) == 2 and arguments[0] == "fill":
        return fill(Path(arguments[1]))
    if len(arguments) == 3 and arguments[0] == "install":
        return install(Path(arguments[1]), Path(arguments[2]))
    print(__doc__)
    return 2


def fill(folder: Path, lock: Path = Path("requirements.lock")) -> int:
    """Download the wheels of CARRIED into `folder`; what DeepSpeed has none of is built."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()  # two versions of one package would stop the installation
    versions = locked(lock)
    pip = python_command("-m", "pip", "--disable-pip-version-check", "--quiet")
    wanted = [f"{name}=={versions[name]}" for name in CARRIED if name != "deepspeed"]
    platforms = [argument for name in _PLATFORMS for argument in ("--platform", name)]
    only = ["--no-deps", "--only-binary=:all:", "--python-version", _PYTHON]
    print(f"downloading {len(wanted)} wheels for Python {_PYTHON} into {folder}")
    subprocess.run(
        [*pip, "download", *only, "--implementation", "cp", *platforms, "-d", str(folder), *wanted],
        check=True,
    )
    # DeepSpeed publishes its sources alone; without its compiled operators they are pure Python.
    print(f"building the wheel of deepspeed {versions['deepspeed']}")
    build = [*pip, "wheel", "--no-deps", "-w", str(folder), f"deepspeed=={versions['deepspeed']}"]
    subprocess.run(build, check=True, env={**os.environ, "DS_BUILD_OPS": "0"})
    for name, why in SKIPPED.items():
        print(f"left out: {name} ({why})")
    size = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    print(f"{folder}: {size / (1 << 20):.1f} MiB of at most {MOST_BYTES >> 20}")
    return int(size > MOST_BYTES)


def locked(lock: Path) -> dict[str, str]:
    """Return the versions that the lock pins; the last one where the Python version decides."""
    pins = re.findall(r"^([\w.-]+)==([^\s;\\]+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(pins)


def install(folder: Path, target: Path) -> int:
    """Unpack the wheels that the machine lacks, or has too old, into `target`.

    Returns 1 when something of EXPECTED is still missing, which is named.
    """
    wheels = sorted(folder.glob("*.whl")) if folder.is_dir() else []
    if not wheels:
        print(f"no wheels in {folder} (make gpu-wheels fills it where there is a network)")
    chosen = needed(wheels)
    if chosen:
        print(f"installing {len(chosen)} of {len(wheels)} wheels into {target}")
        pip = python_command("-m", "pip", "--disable-pip-version-check", "--quiet", "install")
        alone = ["--no-index", "--no-deps", "--no-cache-dir", "--upgrade", "--target", str(target)]
        subprocess.run([*pip, *alone, *map(str, chosen)], check=True)
    sys.path.insert(0, str(target))
    missing = [name for name in EXPECTED if _installed(name) is None]
    for name in missing:
        print(f"missing: {name}; what needs it fails or is skipped")
    for name, why in SKIPPED.items():
        if _installed(name) is None:
            print(f"not here: {name} ({why})")
    return int(bool(missing))


def needed(wheels: Iterable[Path]) -> list[Path]:
    """Return the wheels whose package is not installed, or too old for what is to be installed.

    What the machine has stays in front: it was built for its torch.
    """
    carried = {canonicalize_name(wheel.name.partition("-")[0]): wheel for wheel in wheels}
    chosen = {name for name in carried if _installed(name) is None}
    asked = set(chosen)
    while asked:
        wants = [requirement for name in asked for requirement in _requirements(carried[name])]
        names = {
            canonicalize_name(requirement.name) for requirement in wants if not _fits(requirement)
        }
        asked = (names & carried.keys()) - chosen
        chosen |= asked
    return [carried[name] for name in sorted(chosen)]


def _requirements(wheel: Path) -> list[Requirement]:
    """Return what a wheel needs on this machine, without its extras."""
    with ZipFile(wheel) as archive:
        name = next(file for file in archive.namelist() if file.endswith(".dist-info/METADATA"))
        fields = Parser().parsestr(archive.read(name).decode("utf-8"))
    all_of_them = [Requirement(text) for text in fields.get_all("Requires-Dist", [])]
    return [
        requirement
        for requirement in all_of_them
        if not requirement.marker or requirement.marker.evaluate({"extra": ""})
    ]


def _fits(wanted: Requirement) -> bool:
    installed = _installed(wanted.name)
    return installed is not None and wanted.specifier.contains(installed, prereleases=True)


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
