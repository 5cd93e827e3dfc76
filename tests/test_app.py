"""The Space as its host sets it up; the container and the site around it."""

import ctypes.util
import inspect
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import httpx
import pytest
import yaml
from served import free_port

from skindx.cli.serve import serve

ROOT = Path(__file__).parents[1]
OFFLINE = ("error sending request", "dns error", "failed to fetch", "failed to download")


def call(*command: str | Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=1500, check=False
    )


def test_the_container_is_made_of_what_the_checkout_has() -> None:
    recipe = (ROOT / "app/Dockerfile").read_text()
    copied = [line.split()[1:-1] for line in recipe.splitlines() if line.startswith("COPY")]
    named = {name for names in copied for name in names if not name.startswith(("--", "/", "."))}
    assert named == {"requirements.lock", "pyproject.toml", "app/app.py"}
    sent = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    assert {name.partition("/")[0] for name in named} | {"skindx", ".ci", "NOTICE"} <= sent
    assert all((ROOT / name).exists() for name in sent | named)
    assert "USER 10001" in recipe
    assert "/healthz" in recipe
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(re.findall(r"^ARG EXTRAS=(\w+)$", recipe, re.MULTILINE))
    assert len(extras) == 1
    assert extras < project["optional-dependencies"].keys() - {"detect"}


def test_the_site_is_one_that_skindx_serves() -> None:
    site = yaml.safe_load((ROOT / "app/compose.yaml").read_text())
    services, caddy = site["services"], (ROOT / "app/Caddyfile").read_text()
    served = services["skindx"]
    program, verb, bundle, *options = served["command"]
    assert (program, verb) == ("skindx", "serve")
    mounts = [mount.rpartition("}")[2] or mount for mount in served["volumes"]]
    assert f":{bundle}:ro" in mounts
    given = dict(option.removeprefix("--").split("=", 1) for option in options)
    known = {name.replace("_", "-") for name in inspect.signature(serve).parameters}
    assert given.keys() <= known
    assert {"login", "casebook", "casebook-key", "proxy", "allowed-host"} <= given.keys()
    assert served["networks"] == ["inner"]  # which has no way out
    assert site["networks"]["inner"]["internal"]
    assert given["proxy"] == services["caddy"]["networks"]["inner"]["ipv4_address"]
    assert f"handle_path {given['root-path']}/*" in caddy
    assert "reverse_proxy skindx:7860" in caddy
    assert served["read_only"]
    assert served["cap_drop"] == ["ALL"]
    assert not {"ports"} & (served.keys() | services["postgres"].keys())
    if program := shutil.which("caddy"):
        config = ["--config", ROOT / "app/Caddyfile", "--adapter", "caddyfile"]
        checked = call(program, "validate", *config, folder=ROOT)
        assert checked.returncode == 0, checked.stderr


def test_a_space_answers_to_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}
    monkeypatch.setattr("skindx.ui.serve.serve", lambda _, **options: given.update(options))
    monkeypatch.setenv("SPACE_HOST", "user-space.hf.space")
    monkeypatch.setenv("SKINDX_PROXY", "10.0.0.1")
    monkeypatch.setenv("SKINDX_ALLOWED_HOSTS", "skin.example.org,other.example.org")
    main = runpy.run_path(str(ROOT / "app/app.py"))["main"]
    assert main() == 0
    assert given["proxy"] == "10.0.0.1"
    assert given["allowed_hosts"] == [
        "skin.example.org", "other.example.org", "user-space.hf.space"
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_app_starts_from_its_requirements_and_the_wheel(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    built = call(
        sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, folder=ROOT
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    needed = (ROOT / "app/requirements.txt").read_text().replace("skindx[", f"{wheel}[")
    (tmp_path / "requirements.txt").write_text(needed)
    python = tmp_path / "venv/bin/python"
    uv = [sys.executable, "-m", "uv"]
    call(*uv, "venv", "--python", sys.executable, tmp_path / "venv", folder=tmp_path)
    install = [*uv, "pip", "install", "--python", python, "-r", "requirements.txt"]
    if ctypes.util.find_library("GL") is None:  # packages.txt would install it
        (tmp_path / "override.txt").write_text("opencv-python; sys_platform == 'never'\n")
        install += ["--override", "override.txt"]
    done = call(*install, folder=tmp_path)
    if done.returncode and any(word in done.stderr.lower() for word in OFFLINE):
        pytest.skip("the package registry cannot be reached, so there is nothing to install from")
    assert done.returncode == 0, done.stderr
    (tmp_path / "app.py").write_bytes((ROOT / "app/app.py").read_bytes())
    (tmp_path / "bundle").symlink_to(tiny_bundle)
    _answers(python, tmp_path)


def _answers(python: Path, folder: Path) -> None:
    port = free_port()
    kept = ("PATH", "LANG", "SSL_CERT_FILE")
    env = {key: os.environ[key] for key in kept if key in os.environ}
    env |= {"HOME": str(folder), "GRADIO_SERVER_PORT": str(port), "SPACE_ID": "someone/skindx"}
    with (folder / "log").open("w") as log:
        app = subprocess.Popen([python, "app.py"], cwd=folder, env=env, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 600
            while "skindx is at" not in (folder / "log").read_text():
                assert app.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.5)
            url = f"http://127.0.0.1:{port}"
            page = httpx.get(url, trust_env=False)
            assert page.status_code == 200
            assert "https://huggingface.co" in page.headers["content-security-policy"]
            health = httpx.get(f"{url}/v1/health", trust_env=False).json()
            assert health["status"] == "ok"
        finally:
            app.terminate()
            assert app.wait(60) == 0
