"""A real page server as a process of its own, and a client that speaks to it without a browser."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from network_guard import guarded_environment

from skindx.core.machine import free_port

# On SIGUSR1 the server lists the tabs whose photos, or sealed answers, it still remembers.
CODE = """
import json, signal, sys
from pathlib import Path
from skindx.core.startup import collect_rarely
collect_rarely()
def tell(*_):
    import gradio
    (page,) = gradio.Blocks.get_instances()
    tabs = page.state_holder.session_data.items()
    photos = ("data:image/jpeg", "data-report=")
    held = [name for name, tab in tabs if any(it in str(tab.config_values) for it in photos)]
    Path("told").write_text(" ".join(held))
    Path("told").rename("remembered")
signal.signal(signal.SIGUSR1, tell)
from skindx.ui.serve import serve
options = json.loads(sys.argv[3])
login, detector = options.pop("login", None), options.pop("detector", None)
if worker := options.pop("worker_command", None):
    from skindx.ui import app
    app.worker_command = lambda *_, **__: tuple(worker)
if command := options.pop("scan_command", None):
    from skindx.ui.scans import scan_jobs as jobs
    jobs.COMMAND = tuple(command)
serve(Path(sys.argv[1]), port=int(sys.argv[2]), login=login and Path(login),
      detector=detector and Path(detector), **options)
"""


@dataclass(frozen=True)
class Told:
    """Everything that came to the page after a photo was sent, as JSON."""

    success: bool
    said: str


@dataclass(frozen=True)
class Served:
    """A running page; `folder` is the HOME and the temporary folder of its process."""

    url: str
    folder: Path
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def uploads(self) -> list[Path]:
        """The files that the server keeps for its users."""
        kept = self.folder.glob("skindx-uploads-*/**/*")
        return [path for path in kept if path.is_file()]

    def remembered(self) -> set[str]:
        """Return the tabs whose images are in the server's memory."""
        answer = self.folder / "remembered"
        answer.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 30
        while not answer.exists():
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)
        return set(answer.read_text().split())

    def stderr(self) -> str:
        return (self.folder / "stderr").read_text()

    @contextmanager
    def client(self, name: str = "", password: str = "") -> Iterator[httpx.Client]:
        """Yield a client, logged in where a name is given."""
        with httpx.Client(base_url=self.url, timeout=120) as client:
            if name:
                answer = client.post("/login", data={"name": name, "password": password})
                assert answer.status_code == 303, answer.text
            yield client

    def upload(self, data: bytes, name: str, client: httpx.Client | None = None) -> str:
        """Return the path under which the server holds the file."""
        with nullcontext(client) if client else self.client() as http:
            answer = http.post("/gradio_api/upload", files={"files": (name, data)})
        answer.raise_for_status()
        path: str = answer.json()[0]
        return path

    def join(self, path: str, session: str, client: httpx.Client | None = None) -> httpx.Response:
        """Ask for a diagnosis of a file as the page does."""
        body = {
            "data": [],
            "event_data": {"photos": [path], "patient": {}},
            "fn_index": 0,
            "session_hash": session,
        }
        with nullcontext(client) if client else self.client() as http:
            return http.post("/gradio_api/queue/join", json=body)

    def answer(self, path: str, session: str, client: httpx.Client | None = None) -> Told:
        """Return what the page is told about an uploaded file."""
        self.join(path, session, client).raise_for_status()
        said, params = "", {"session_hash": session}
        with (
            nullcontext(client) if client else self.client() as http,
            http.stream("GET", "/gradio_api/queue/data", params=params) as events,
        ):
            for line in events.iter_lines():
                event = json.loads(line.removeprefix("data:")) if line else {}
                said += json.dumps(event.get("output", ""))
                if event.get("msg") == "process_completed":
                    return Told(bool(event["success"]), said)
        raise AssertionError("the server closed without an answer")


@contextmanager
def serving(bundle: Path, folder: Path, **options: Any) -> Iterator[Served]:
    """Serve a bundle under the network guard, behind a proxy that nobody may ask."""
    port = free_port()
    environment = guarded_environment(folder)
    for scheme in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        environment[scheme] = "http://192.0.2.1:9"
    with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", CODE, bundle, str(port), json.dumps(options)],
            env=environment,
            cwd=folder,
            stdout=stdout,
            stderr=stderr,
            text=True,
        )
        root = options.get("root_path", "")
        served = Served(f"http://127.0.0.1:{port}{root}", folder, process)
        try:
            _wait(served)
            yield served
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)
        assert process.returncode == 0, served.stderr()
        assert not list(folder.glob("skindx-uploads-*")), "the uploads outlived the server"
        assert not list(folder.glob("skindx-scans-*")), "the scans outlived the server"


def _wait(served: Served) -> None:
    deadline = time.monotonic() + 240
    while "skindx is at" not in (served.folder / "stdout").read_text():
        assert served.process.poll() is None, served.stderr()
        assert time.monotonic() < deadline, served.stderr()
        time.sleep(0.1)
