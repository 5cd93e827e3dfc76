"""A PostgreSQL server of a test, as its own user; the test skips where there is none."""

import getpass
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def server() -> Iterator[str]:
    """Yield the URL of an empty database that nothing else uses."""
    pytest.importorskip("psycopg")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    programs = shutil.which("initdb") or (f"{found[-1]}/initdb" if found else None)
    user = _user()
    if programs is None or user is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql), or has no user")
    folder = Path(tempfile.mkdtemp(prefix="skindx-postgresql-"))
    shutil.chown(folder, user)
    tools, data = Path(programs).parent, folder / "data"
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]

    def run(*words: str) -> None:
        as_user = {} if user == getpass.getuser() else {"user": user}
        subprocess.run(
            [str(tools / words[0]), *words[1:]],
            check=True,
            capture_output=True,
            cwd=folder,
            **as_user,
        )

    try:
        run("initdb", "-D", str(data), "-U", "skindx", "--auth=trust", "--no-sync")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        run("pg_ctl", "-D", str(data), "-o", options, "-l", str(folder / "log"), "-w", "start")
        try:
            yield f"postgresql+psycopg://skindx@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _user() -> str | None:
    """Return who may run the server, which refuses to run as root."""
    if os.geteuid() != 0:
        return getpass.getuser()
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return None
