"""The container is really built and run; SKINDX_IMAGE names an image of podman's to run."""

import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from skin_photo import skin_photo

ROOT = Path(__file__).parents[1]
BASE = "python:3.11-slim"
NEEDED_GB = 40
"""Four copies of the environment, with the libraries for CUDA that PyPI's torch brings."""
ASK = """
import sys, httpx
photo = {"photo": sys.stdin.buffer.read()}
answer = httpx.post("http://127.0.0.1:7860/v1/diagnose", files=photo, timeout=300)
print(answer.status_code, answer.text)
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


def run(*command: "str | Path", given: bytes | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, cwd=ROOT, check=False)
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-4000:])
    return done.stdout.decode()


def works(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Build the image with the lock's torch, from a registry's base or from Debian's packages."""
    if os.geteuid() != 0 or not shutil.which("podman") or not shutil.which("buildah"):
        pytest.skip(
            "root builds it with buildah and podman (apt-get install buildah podman debootstrap)"
        )
    if built := os.environ.get("SKINDX_IMAGE"):
        yield built
        return
    folder = tmp_path_factory.mktemp("container")
    if (free := shutil.disk_usage("/var/lib").free / 1e9) < NEEDED_GB:
        pytest.skip(f"building the container takes {NEEDED_GB} GB of disk; {free:.0f} are free")
    bases = [f"docker.io/library/{BASE}", "localhost/skindx-base"]
    base = next((name for name in bases if _has(name)), None) or _debian(folder, bases[-1])
    # A registry may be behind a certificate of this machine's own.
    (folder / "uv.toml").write_text("system-certs = true\n")
    (folder / "pip.conf").write_text("[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n")
    lent = [
        *("--volume", "/etc/ssl/certs:/etc/ssl/certs:ro"),
        *("--volume", f"{folder}/uv.toml:/etc/uv/uv.toml:ro"),
        *("--volume", f"{folder}/pip.conf:/etc/pip.conf:ro"),
    ]
    arguments = ["--build-arg", f"BASE={base}", "--build-arg", "TORCH="]
    command = ["buildah", "bud", "--isolation", "chroot", "--format", "docker", *lent, *arguments]
    name = "localhost/skindx-test"
    run(*command, "--tag", name, "--file", "app/Dockerfile", ".")
    yield name
    run("podman", "rmi", "--force", name)


def _has(base: str) -> bool:
    asked = ["image", "exists"] if base.startswith("localhost/") else ["pull"]
    return works("podman", *asked, base)


def _debian(folder: Path, name: str) -> str:
    """Make a base of Debian's packages, as app/README.md does."""
    if shutil.which("debootstrap") is None:
        pytest.skip("no registry answers, and there is no debootstrap to make a base with")
    root = folder / "base"
    packages = "--include=python3,python3-venv,ca-certificates"
    run("debootstrap", "--variant=minbase", packages, "bookworm", root)
    with tarfile.open(folder / "base.tar", "w") as tar:
        tar.add(root, ".")
    run("podman", "import", folder / "base.tar", name)
    return name


def test_the_container_answers_with_no_rights_and_no_network(
    image: str, tiny_bundle: Path, tmp_path: Path
) -> None:
    bundle = shutil.copytree(tiny_bundle, tmp_path / "bundle")
    run("chmod", "-R", "a+rX", bundle)
    site = yaml.safe_load((ROOT / "app/compose.yaml").read_text())["services"]["skindx"]
    engine = ["podman", "--cgroup-manager=cgroupfs"]
    if shutil.which("runc"):  # crun refuses the older cgroups
        engine += ["--runtime=runc"]
    # podman's own limits are above those that root may set in a virtual machine.
    limits = ["--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"]
    limits += [f"--memory={site['mem_limit']}", f"--shm-size={site['shm_size']}"]
    limits += ["--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL"]
    limits += ["--tmpfs=/tmp:noexec,nosuid,nodev"]  # as docker mounts it
    limits += [f"--security-opt={option.partition(':')[0]}" for option in site["security_opt"]]
    started = run(
        *(*engine, "run", "--detach", "--network=none", *limits),
        *("--volume", f"{bundle}:/bundle:ro", image),
    ).strip()
    try:
        (health,) = json.loads(run("podman", "image", "inspect", image))
        check = health["Healthcheck"]["Test"][1:]
        deadline = time.monotonic() + 900
        inside = ["podman", "exec", "--interactive", started]
        while not works(*inside, *check):
            log = run("podman", "logs", started)
            assert run("podman", "inspect", "--format={{.State.Running}}", started) == "true\n", log
            assert time.monotonic() < deadline, log
            time.sleep(1)
        assert run(*inside, "id", "-u").strip() == "10001"
        assert "CapEff:\t0000000000000000" in run(*inside, "cat", "/proc/1/status")
        assert not works(*inside, "touch", "/app/new")
        answer = run(*inside, "python", "-c", ASK, given=skin_photo())
        assert answer.startswith("200 "), answer
        assert json.loads(answer[4:])["diagnosis"]["next_step"]["advice"]
        run("podman", "stop", "--time=60", started)
        ended = json.loads(run("podman", "inspect", started))[0]["State"]
        assert (ended["ExitCode"], ended["OOMKilled"]) == (0, False), run("podman", "logs", started)
    finally:
        run("podman", "rm", "--force", "--volumes", started)
