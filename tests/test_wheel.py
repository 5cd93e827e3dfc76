"""The wheel as a stranger gets it: built, installed alone, used from another folder."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

# Imports skindx and tells what came along.
PROBE = """
import json, sys
before = set(sys.modules)
import skindx
loaded = sorted(set(sys.modules) - before)
from importlib.resources import files
print(json.dumps({
    "loaded": loaded,
    "file": skindx.__file__,
    "version": skindx.__version__,
    "typed": (files("skindx") / "py.typed").is_file(),
    "skin10": (files("skindx") / "taxonomy/skin10.yaml").read_text(encoding="utf-8"),
}))
"""


def call(command: list[str | Path], cwd: Path) -> str:
    # No PYTHONPATH: the checkout must not stand in for the installed package.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env["SOURCE_DATE_EPOCH"] = "1767225600"
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(target: str, root: Path, folder: Path) -> Path:
    """Return the wheel or sdist that is built from `root` into `folder`."""
    # The build backend itself, from the dev extra: an isolated build would fetch it again.
    call([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder], cwd=root)
    (built,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return build("wheel", ROOT, folder)


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment that holds the wheel and nothing else."""
    venv = tmp_path_factory.mktemp("clean") / "venv"
    uv = [sys.executable, "-m", "uv", "--no-config", "--offline", "--no-cache"]
    call([*uv, "venv", "--python", sys.executable, venv], cwd=venv.parent)
    python = venv / "bin" / "python"
    call([*uv, "pip", "install", "--python", python, "--no-deps", wheel], cwd=venv.parent)
    return venv


def test_the_wheel_holds_the_package_whole_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {PurePosixPath(name) for name in archive.namelist()}
    (info,) = {name.parts[0] for name in names} - {"skindx"}
    assert info.endswith(".dist-info")
    here = {
        PurePosixPath(path.relative_to(ROOT).as_posix())
        for path in (ROOT / "skindx").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.parts[0] == "skindx"} == here
    assert PurePosixPath("skindx/py.typed") in names
    assert PurePosixPath(info, "licenses", "LICENSE") in names
    assert PurePosixPath(info, "licenses", "NOTICE") in names


def test_the_licence_is_the_one_that_the_metadata_names(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {PurePosixPath(name).name: name for name in archive.namelist() if "-info" in name}
        licence = archive.read(files["LICENSE"]).decode()
        notice = archive.read(files["NOTICE"]).decode()
        metadata = archive.read(files["METADATA"]).decode()
        entry_points = archive.read(files["entry_points.txt"]).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Apache License" in licence
    assert "END OF TERMS AND CONDITIONS" in licence
    assert "AGPL-3.0" in notice
    assert "not\nclinically reviewed" in notice
    assert "skindx = skindx.cli:main" in entry_points


def test_it_works_alone_from_another_folder(site: Path, tmp_path: Path) -> None:
    reported: dict[str, Any] = json.loads(
        call([site / "bin" / "python", "-I", "-c", PROBE], tmp_path)
    )
    assert Path(reported["file"]).is_relative_to(site)
    assert reported["version"]
    assert reported["typed"]
    assert reported["skin10"] == (ROOT / "skindx/taxonomy/skin10.yaml").read_text(encoding="utf-8")


def test_importing_skindx_imports_nothing_heavy() -> None:
    # Here every dependency is installed, so a heavy import would succeed and be seen.
    reported: dict[str, Any] = json.loads(call([sys.executable, "-c", PROBE], cwd=ROOT))
    tops = {name.partition(".")[0] for name in reported["loaded"]}
    assert tops <= {"skindx", *sys.stdlib_module_names}


def test_nothing_but_skindx_lands_in_site_packages(site: Path) -> None:
    (packages,) = site.glob("lib/python*/site-packages")
    names = {path.name for path in packages.iterdir() if not path.name.startswith(("_virtualenv",))}
    (info,) = names - {"skindx"}
    assert info.endswith(".dist-info")
    assert (site / "bin" / "skindx").is_file()


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.mark.parametrize("target", ["wheel", pytest.param("sdist", marks=pytest.mark.long)])
def test_two_builds_are_the_same_to_the_byte(
    target: str, wheel: Path, sdist: Path, tmp_path: Path
) -> None:
    """The second one is built in another folder, from what the first sdist holds."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "tree", filter="data")
    (tree,) = (tmp_path / "tree").iterdir()
    first = wheel if target == "wheel" else sdist
    assert build(target, tree, tmp_path / "second").read_bytes() == first.read_bytes()


def test_the_wheel_knows_its_commit(site: Path, tmp_path: Path) -> None:
    from skindx.core.measurement import commit

    if not commit():
        pytest.skip("this is no checkout with a commit")
    ask = "from skindx.core.measurement import commit; print(commit())"
    reported = call([site / "bin" / "python", "-I", "-c", ask], tmp_path).strip()
    assert reported.removesuffix("-dirty") == commit().removesuffix("-dirty")
