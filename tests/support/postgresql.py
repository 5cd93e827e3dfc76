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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from machines import Machine


@dataclass(frozen=True)
class Site:
    """A machine with a database, and two that reach it."""

    url: str
    head: "Machine"
    nodes: "list[Machine]"

    def ask(self, sql: str) -> list[str]:
        """Return the words of a query's answer."""
        code, output = self.head.run("psql", self.url.replace("+psycopg", ""), "-tAc", sql)
        assert code == 0, output
        return output.split()


@contextmanager
def two_nodes_and_database(folder: Path) -> Iterator[Site]:
    """Yield them, or skip where they cannot be made."""
    from machines import machines

    with machines(folder, "sk-db", "sk-e", "sk-f") as (head, *nodes), server(head) as url:
        yield Site(url, head, nodes)


@contextmanager
def server(machine: "Machine | None" = None) -> Iterator[str]:
    """Yield the URL of an empty database that nothing else uses, here or on a machine."""
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
    address = machine.address if machine else "127.0.0.1"

    def run(*words: str) -> None:
        if machine:
            become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
            code, output = machine.run(*become, tools / words[0], *words[1:])
            assert code == 0, output
            return
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
        with (data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet trust\n")
        options = f"-p {port} -k {folder} -c listen_addresses={address} -c fsync=off"
        run("pg_ctl", "-D", str(data), "-o", options, "-l", str(folder / "log"), "-w", "start")
        try:
            yield f"postgresql+psycopg://skindx@{address}:{port}/postgres"
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
