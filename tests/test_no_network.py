"""Nothing that a user runs here reaches another machine."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from network_guard import run_guarded
from skin_photo import skin_photo

DIAGNOSE = """
import sys
from pathlib import Path
from skindx.diagnosis.case import Case
from skindx.diagnosis.diagnose import answer
from skindx.diagnosis.predictor import Predictor
from skindx.core.machine import go_offline
go_offline()
case = Case((Path(sys.argv[2]).read_bytes(),))
print(answer(Predictor.load(Path(sys.argv[1])), case).diagnosis.model_dump_json())
"""

PACKAGES = """
import json
from skindx.core.machine import go_offline
go_offline()
import albumentations
from huggingface_hub import constants
from ultralytics.utils import SETTINGS, TESTS_RUNNING
from ultralytics.utils.events import events
print(json.dumps({
    "seen as a test": TESTS_RUNNING,
    "ultralytics sends": events.enabled,
    "ultralytics streams": bool(SETTINGS["api_key"]),
    "hub is reached": not constants.HF_HUB_OFFLINE,
    "hub sends": not constants.HF_HUB_DISABLE_TELEMETRY,
}))
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    file = tmp_path / "picture.png"
    file.write_bytes(skin_photo(form="PNG"))
    return file


def test_diagnose_and_the_packages_below_reach_nobody_and_leave_the_users_settings_alone(
    tiny_bundle: Path, image: Path, tmp_path: Path
) -> None:
    theirs = tmp_path / ".config/Ultralytics/settings.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text('{"api_key": "theirs"}')
    done = run_guarded(["-c", DIAGNOSE + PACKAGES, tiny_bundle, image], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.calls == []
    assert done.stderr == ""
    diagnosis, flags = map(json.loads, done.stdout.splitlines())
    assert diagnosis["photos"][0]["boxes"]
    assert not any(flags.values()), flags
    assert list(theirs.parent.iterdir()) == [theirs]
    assert theirs.read_text() == '{"api_key": "theirs"}'


@pytest.mark.long
def test_the_packages_below_us_are_silent(tmp_path: Path) -> None:
    done = run_guarded(["-c", PACKAGES], tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert not any(said.values()), said
    assert done.calls == []
    assert not (tmp_path / ".config/Ultralytics").exists()


@pytest.mark.long
def test_without_our_variables_they_would_call_home(tmp_path: Path) -> None:
    code = PACKAGES.replace("go_offline()\n", "\n")
    calls = run_guarded(["-c", code], tmp_path).calls
    assert any("one.one.one.one" in call for call in calls), calls  # ultralytics
    # albumentations looks for a newer version of itself, somewhere else.
    assert [call for call in calls if "one.one.one.one" not in call], calls


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("import socket; socket.create_connection(('192.0.2.1', 9), 0.1)", "192.0.2.1"),
        ("import socket; socket.getaddrinfo('example.com', 443)", "example.com"),
        (
            "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('192.0.2.1', 9))",
            "192.0.2.1",
        ),
        (
            "import subprocess, sys; subprocess.run([sys.executable, '-c', "
            "'import socket; socket.socket().connect((\"192.0.2.1\", 9))'], check=True)",
            "192.0.2.1",
        ),
    ],
    ids=["connect", "resolve", "datagram", "grandchild"],
)
def test_the_guard_catches_a_call(tmp_path: Path, code: str, call: str) -> None:
    done = run_guarded(["-c", code], tmp_path)
    assert done.returncode != 0
    assert any(call in line for line in done.calls)


def test_the_guard_catches_a_call_whose_failure_is_swallowed(tmp_path: Path) -> None:
    code = (
        "import contextlib, socket\nwith contextlib.suppress(OSError): socket.getaddrinfo('x.y', 1)"
    )
    done = run_guarded(["-c", code], tmp_path)
    assert done.returncode == 0
    assert done.calls == ["socket.getaddrinfo x.y"]


def test_the_guard_lets_this_machine_through(tmp_path: Path) -> None:
    class Hello(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Hello) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        code = (
            "import urllib.request as r; "
            f"print(r.urlopen('http://localhost:{server.server_port}', timeout=30).status)"
        )
        done = run_guarded(["-c", code], tmp_path)
    assert (done.stdout.strip(), done.calls) == ("204", []), done.stderr
