"""Real proxies before a server: shown under /skin/, and under /kept/ with an unchanged path."""

import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from served import free_port

NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log stderr; {user}
events {{ worker_connections 64; }}
http {{
  access_log off; client_max_body_size 61m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/a; uwsgi_temp_path {folder}/b; scgi_temp_path {folder}/c;
  proxy_set_header Host $http_host;
  proxy_set_header X-Forwarded-For $remote_addr;
  proxy_set_header X-Forwarded-Proto $scheme;
  proxy_buffering off;
  server {{
    listen 127.0.0.1:{port};
    location /skin/ {{ proxy_pass http://127.0.0.1:{upstream}/; {prefix} }}
    location /kept/ {{ proxy_pass http://127.0.0.1:{upstream}; }}
  }}
}}
"""
CADDY = """
{{
  admin off
  auto_https off
  grace_period 1s
}}
http://127.0.0.1:{port} {{
  handle_path /skin/* {{
    reverse_proxy 127.0.0.1:{upstream} {{
      flush_interval -1
      {prefix}
    }}
  }}
  handle /kept* {{
    reverse_proxy 127.0.0.1:{upstream} {{
      flush_interval -1
    }}
  }}
}}
"""
LOOPBACK = """
	admin off
	default_bind 127.0.0.1
	auto_https disable_redirects
	skip_install_trust
	grace_period 1s
""".lstrip("\n")
PREFIX = {
    "nginx": "proxy_set_header Host $http_host; proxy_set_header X-Forwarded-For $remote_addr; "
    "proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Forwarded-Prefix /skin;",
    "caddy": "header_up X-Forwarded-Prefix /skin",
}


@contextmanager
def proxied(kind: str, upstream: int, folder: Path, *, says_prefix: bool = True) -> Iterator[str]:
    """Run nginx or caddy before a port of this machine; yield its address. Skips without it."""
    program = shutil.which(kind, path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip(f"{kind} is not there: `make proxies` installs it and lets these tests run")
    port = free_port()
    text = (NGINX if kind == "nginx" else CADDY).format(
        folder=folder,
        user="user root;" if os.geteuid() == 0 else "",
        port=port,
        upstream=upstream,
        prefix=PREFIX[kind] if says_prefix else "",
    )
    (folder / "conf").write_text(text)
    commands = {
        "nginx": [program, "-p", folder, "-c", folder / "conf"],
        "caddy": [program, "run", "--config", folder / "conf", "--adapter", "caddyfile"],
    }
    with _listening(commands[kind], port, folder):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def site(upstream: int, folder: Path) -> Iterator[tuple[str, ssl.SSLContext]]:
    """Run Caddy with app/Caddyfile before a port of this machine, as SITE=localhost does.

    Yield its address and a context that trusts nothing but the authority that it made.
    """
    program = shutil.which("caddy")
    if program is None:
        pytest.skip("caddy is not there: `make proxies` installs it and lets these tests run")
    port = free_port()
    text = (Path(__file__).parents[2] / "app/Caddyfile").read_text()
    # Of the file only where it listens and what it asks is changed.
    for old, new in (
        ("{\n\tservers", f"{{\n{LOOPBACK}\tservers"),
        ("{$SITE:localhost} {", f"localhost:{port} {{"),
        ("reverse_proxy skindx:7860", f"reverse_proxy 127.0.0.1:{upstream}"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "conf").write_text(text)
    command = [program, "run", "--config", folder / "conf", "--adapter", "caddyfile"]
    with _listening(command, port, folder):
        authority = folder / "caddy/pki/authorities/local/root.crt"
        yield f"https://localhost:{port}", _trusted(authority, port)


def _trusted(authority: Path, port: int) -> ssl.SSLContext:
    """Return a context once Caddy, which listens before that, has made its certificate."""
    deadline = time.monotonic() + 60
    while True:
        try:
            trust = ssl.create_default_context(cafile=authority)
            with (
                socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
                trust.wrap_socket(plain, server_hostname="localhost"),
            ):
                return trust
        except (OSError, ssl.SSLError):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@contextmanager
def _listening(command: list[str | Path], port: int, folder: Path) -> Iterator[None]:
    environment = os.environ | {"HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        deadline = time.monotonic() + 60
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)
