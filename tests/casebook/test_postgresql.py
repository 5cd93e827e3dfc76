"""A case book in a real PostgreSQL server: nothing in clear in any of its files, log included."""

import base64
import getpass
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from kept_cases import answer, image

from skindx.casebook.casebook import Casebook
from skindx.core.errors import UserError

PATIENT, LESION, NOTE = "P-017 Maria", "left forearm", "excised in May"


def programs() -> Path:
    """Return where PostgreSQL's programs are, or skip."""
    pytest.importorskip("psycopg", reason="`pip install psycopg[binary]` lets these tests run")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = str(found[-1]) if found else shutil.which("initdb")
    if initdb is None:
        pytest.skip("PostgreSQL is not there: `apt install postgresql` lets these tests run")
    return Path(initdb).parent


@dataclass(frozen=True)
class Server:
    """A running server; `folder` holds its data, its log and its socket."""

    folder: Path
    user: str

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+psycopg://{self.user}@/{database}?host={self.folder}"

    def execute(self, sql: str, database: str = "postgres") -> None:
        import psycopg

        where = f"host={self.folder} user={self.user} dbname={database}"
        with psycopg.connect(where, autocommit=True) as link:
            link.execute(sql)

    def everything(self) -> bytes:
        """Return the bytes of all files: tables, write-ahead log, server log."""
        self.execute("CHECKPOINT")
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return b"".join(path.read_bytes() for path in files)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    binaries, root = programs(), os.geteuid() == 0
    user = "postgres" if root else getpass.getuser()  # it refuses to run as root
    try:
        owner = pwd.getpwnam(user)
    except KeyError:
        pytest.skip("PostgreSQL has no user here: `apt install postgresql` lets these tests run")
    as_user = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []} if root else {}
    folder = Path(tempfile.mkdtemp(prefix="skindx-pg-"))
    if root:
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    data = folder / "data"
    subprocess.run(
        [binaries / "initdb", "--no-sync", "--auth=trust", f"--username={user}", data],
        check=True, timeout=120, **quiet, **as_user,
    )  # fmt: skip
    # The log is as talkative as it gets: statements, and their values.
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [binaries / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses=",
             "-c", "fsync=off", "-c", "log_statement=all", "-c", "log_parameter_max_length=-1"],
            stdout=subprocess.DEVNULL, stderr=log, cwd=folder, **as_user,
        )  # fmt: skip
    server = Server(folder, user)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                server.execute("SELECT 1")
                break
            except Exception:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield server
    finally:
        process.terminate()
        process.wait(timeout=60)
        shutil.rmtree(folder)


@pytest.fixture
def url(server: Server, request: pytest.FixtureRequest) -> str:
    name = request.node.name.lower()[:40]
    server.execute(f"CREATE DATABASE {name}")
    return server.url(name)


def keep(book: Casebook, seed: int) -> str:
    case = book.keep("ann", answer(seed), patient=PATIENT, lesion=LESION, consent=True)
    book.confirm("ann", case, "Nevus", NOTE, ("Nevus",), version=1)
    return case


def secrets(seed: int) -> list[bytes]:
    photo = image(seed)
    pieces = [photo[start : start + 60] for start in range(700, len(photo) - 60, 500)]
    # Text in the log is written in hexadecimal.
    clear = [PATIENT.encode(), LESION.encode(), NOTE.encode(), *pieces]
    return clear + [text.hex().encode() for text in clear]


@pytest.mark.long
def test_a_database_without_an_encoding_keeps_text(server: Server, tmp_path: Path) -> None:
    server.execute(
        "CREATE DATABASE ascii ENCODING SQL_ASCII LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    )
    book = Casebook.open(server.url("ascii"), keys=tmp_path / "keys")
    try:
        case = keep(book, 1)
        (kept,) = book.cases("ann", PATIENT, LESION)
        assert (kept.id, kept.note) == (case, NOTE)
    finally:
        book.engine.dispose()


def test_nothing_is_in_clear_and_a_deleted_case_has_no_key(
    server: Server, url: str, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    with pytest.raises(UserError, match="--casebook-key"):
        Casebook.open(url)
    book = Casebook.open(url, keys=keys)
    stays, goes = keep(book, 1), keep(book, 2)
    (first, second) = book.cases("ann", PATIENT, LESION)
    assert (first.id, second.id) == (stays, goes)
    assert (second.note, second.photos, second.version) == (NOTE, (image(2),), 2)
    assert book.lesions("ann")[0].cases == 2
    assert book.lesions("bob") == []
    raw = server.everything()
    assert b"sealed_photos" in raw  # the log is there, with statements and values
    for secret in secrets(1) + secrets(2):
        assert secret not in raw
    key = base64.b64encode(book.keys.read().cases[goes])
    assert key in keys.read_bytes()
    with pytest.raises(UserError, match="changed in another window"):
        book.confirm("ann", stays, "", "older", (), version=1)
    book.delete("ann", goes)
    assert key not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    again = Casebook.open(url, keys=keys)
    assert [case.id for case in again.all_cases()] == [stays]
    keys.unlink()
    with pytest.raises(UserError, match="missing"):
        Casebook.open(url, keys=keys)
    for opened in (book, again):
        opened.engine.dispose()


def tables_of(server: Server) -> bytes:
    """Return the bytes of all tables; both logs keep what was written in plain text before."""
    server.execute("CHECKPOINT")
    files = [path for path in (server.folder / "data/base").rglob("*") if path.is_file()]
    return b"".join(path.read_bytes() for path in files)


PLAIN = f"""
CREATE TABLE cases (id VARCHAR(32) PRIMARY KEY, owner VARCHAR(200) NOT NULL,
  patient VARCHAR(80) NOT NULL, lesion VARCHAR(80) NOT NULL, taken TIMESTAMPTZ NOT NULL,
  consent TEXT NOT NULL, consented TIMESTAMPTZ NOT NULL, diagnosis TEXT NOT NULL,
  confirmed VARCHAR(200) NOT NULL, note TEXT NOT NULL);
CREATE TABLE photos (case_id VARCHAR(32) REFERENCES cases, position INTEGER, jpeg BYTEA NOT NULL,
  PRIMARY KEY (case_id, position));
CREATE TABLE keys (purpose VARCHAR(40) PRIMARY KEY, key BYTEA NOT NULL);
INSERT INTO keys VALUES ('export', '\\x{"ab" * 32}');
INSERT INTO cases VALUES ('{"c" * 32}', 'ann', '{PATIENT}', '{LESION}', '2026-05-01T12:00+02',
  'agreed', '2026-05-01T12:00+02', '{answer(1).diagnosis.model_dump_json()}', 'Nevus', '{NOTE}');
INSERT INTO photos VALUES ('{"c" * 32}', 0, '\\x{image(1).hex()}');
"""


@pytest.mark.long
def test_a_book_in_plain_text_is_encrypted(server: Server, url: str, tmp_path: Path) -> None:
    server.execute(PLAIN, url.partition("@/")[2].partition("?")[0])
    assert PATIENT.encode() in tables_of(server)
    book = Casebook.open(url, keys=tmp_path / "keys")
    (case,) = book.cases("ann", PATIENT, LESION)
    assert (case.confirmed, case.note, case.photos) == ("Nevus", NOTE, (image(1),))
    assert case.diagnosis == answer(1).diagnosis
    assert case.taken.isoformat() == "2026-05-01T10:00:00+00:00"
    assert book.export_key() == b"\xab" * 32
    with book.engine.connect() as link:
        left = link.exec_driver_sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        tables = {"book", "sealed_cases", "sealed_photos", "sealed_scans", "sealed_scan_files"}
        assert {name for (name,) in left} == tables
    raw = tables_of(server)
    for secret in secrets(1):
        assert secret not in raw
    book.engine.dispose()


@pytest.mark.long
def test_a_server_that_is_gone_or_refuses_is_a_sentence(
    server: Server, url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    book = Casebook.open(url, keys=tmp_path / "keys")
    name = url.partition("@/")[2].partition("?")[0]
    with book.engine.connect():
        server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                       f"WHERE datname = '{name}'")  # fmt: skip
    keep(book, 1)  # a connection that was lost is opened again
    book.engine.dispose()
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    with pytest.raises(UserError, match="cannot be written: its server") as no:
        keep(book, 2)
    assert PATIENT not in str(no.value) + caplog.text
    with pytest.raises(UserError, match=f"cannot be used .*{name}"):
        Casebook.open(url, keys=tmp_path / "keys")
