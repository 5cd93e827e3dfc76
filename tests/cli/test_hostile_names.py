"""Pipes are refused before anybody waits, and names of files give a terminal no orders."""

import errno
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Skindx

from skindx.cli import PrintableStream, guard_terminal, one_sentence
from skindx.cli.options import check
from skindx.core.errors import UserError
from skindx.core.text import without_password
from skindx.scan.outputs.scan_result import read_summary
from skindx.workers.lease_queue import open_database

# Each would wait for ever; where a pipe is refused later, the test's own deadline ends it.
VERBS = [
    ("bundle", "attach", "PIPE", "--out", "new"),
    ("bundle", "attach", "FILE", "--out", "new", "--weights", "PIPE"),
    ("bundle", "detach", "IN", "--out", "new.zip"),
    ("scan", "compare", "IN", "IN", "--out", "new"),
    ("scan", "run", "PIPE", "--bundle", "IN", "--out", "new"),
    ("casebook", "keep-scan", "new.db", "IN", "--patient", "P", "--view", "V", "--consent"),
    ("casebook", "list", "PIPE"),
    ("boxes", "import", "IN", "PIPE"),
    ("build", "IN", "--out", "new"),
    ("build", "PIPE", "--out", "new"),
    ("train", "IN", "--out", "new"),
    ("evaluate", "IN", "IN"),
    ("diagnose", "IN", "PIPE"),
    ("serve", "IN"),
    ("user", "remove", "PIPE", "anna"),
]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
@pytest.mark.timeout(120)
def test_a_pipe_is_refused(
    skindx: Skindx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in/inner").mkdir(parents=True)
    (tmp_path / "file").touch()
    for pipe in ("pipe", "in/scan.json", "in/bundle.json", "in/inner/photo.jpg"):
        os.mkfifo(pipe)
    names = {"PIPE": "pipe", "IN": "in", "FILE": "file"}
    code, _, errors = skindx(*(names.get(word, word) for word in verb))
    assert code == 2, errors
    assert "No such option" not in errors
    assert "is a pipe" in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "in", "pipe"]


def test_plain_files_links_and_the_null_device_pass(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "nowhere").symlink_to("missing")
    for path in (tmp_path, tmp_path / "link", tmp_path / "missing", Path(os.devnull), Path("a\0b")):
        check(path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path, tmp_path / "link", Path("/dev/zero")):
        with pytest.raises(UserError, match=r"is a (pipe|device)"):
            check(path)


def test_readers_refuse_pipes_by_themselves(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "scan.json")
    with pytest.raises(UserError, match="a scan"):
        read_summary(tmp_path)


def test_names_give_a_terminal_no_orders(
    skindx: Skindx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "a\x1b]0;mine\x07\x1b[31m\u202eb"
    (tmp_path / name).mkdir()
    code, printed, errors = skindx("build", name, "--out", "new")
    assert code == 2
    for order in "\x1b\x07\u202e":
        assert order not in printed + errors
    stream = io.StringIO()
    guarded = PrintableStream(stream)
    guarded.write("x\x1b[31my\x1b]0;t\x07\udce4\n\ttab\r")
    assert stream.getvalue() == "x�[31my�]0;t��\n\ttab\r"
    monkeypatch.setattr(stream, "isatty", lambda: True)
    stream.seek(stream.truncate(0))
    PrintableStream(stream).write("\x1b[31mred\x1b[0m\x1b[2K\x1b]0;t\x07")
    assert stream.getvalue() == "\x1b[31mred\x1b[0m\x1b[2K�]0;t�"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_what_an_encoding_lacks_is_replaced(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    """Every verb prints through these streams; children get theirs from the environment."""
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding) for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    guard_terminal()
    said = "2–3 mm… “naïve” ≥ 1 ═ 皮 \udce4"
    print(said)
    print(said, file=sys.stderr)
    child = [sys.executable, "-c", "import sys; print('–皮'); print('–', file=sys.stderr)"]
    assert subprocess.run(child, check=False, capture_output=True).returncode == 0
    for stream in streams.values():
        stream.flush()
        printed = stream.buffer.getvalue().decode(encoding)
        plain = {
            "ascii": '2-3 mm... "naive" > 1 + ? ?\n',
            "latin-1": '2-3 mm... "naïve" > 1 + ? ?\n',
            "cp1252": "2–3 mm… “naïve” > 1 + ? ?\n",
        }
        assert printed == plain.get(encoding, "2–3 mm… “naïve” ≥ 1 ═ 皮 \ufffd\n")


def test_an_error_that_nobody_reads_keeps_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: str) -> int:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(sys.stderr, "write", closed)
    with pytest.raises(SystemExit) as stop, one_sentence():
        raise UserError("nobody reads this.")
    assert stop.value.code == 2


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://ann:geheim@127.0.0.1:1/leases",
        "postgresql+psycopg://127.0.0.1:1/leases?user=ann&password=geheim",
        "mystery://ann:geheim@host/leases",
        "postgresql:/ann:geheim@host/leases",
        "post gresql://ann:geheim@host:x/leases",
    ],
)
def test_a_password_is_not_repeated(skindx: Skindx, url: str) -> None:
    code, printed, errors = skindx("scan", "worker", "--queue", url)
    assert code == 2
    assert "geheim" not in printed + errors + without_password(url)
    with pytest.raises(UserError) as refused:
        open_database(url)
    assert "geheim" not in str(refused.value)


ENDS = """
import os, signal, sys
from skindx.core.errors import UserError
from skindx.ui.scans import scan_process as process
def sender():
    def send(message):
        print(message, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)  # as the server does when it has heard
    return send
process._sender = sender
process._PATIENCE_S = 0
def work(folder, send, make_workers):
    if sys.argv[2] == "full":
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            raise UserError("the disk is full; run the same command again") from None
    raise UserError("photo 1 shows no skin")
process._scan = work
process.main([sys.argv[1]])
"""


@pytest.mark.parametrize("why", ["refused", "full"])
def test_a_refused_scan_leaves_no_trace_and_no_command(tmp_path: Path, why: str) -> None:
    (tmp_path / "job").mkdir()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", ENDS, tmp_path / "job", why],
        stdin=pipe, stdout=pipe, stderr=pipe, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        printed, errors = process.stdout.read(), process.stderr.read()
    assert "KeyboardInterrupt" not in errors
    assert "command" not in printed
    assert ("no room" if why == "full" else "shows no skin") in printed


def test_the_queue_of_a_scan_is_in_no_command() -> None:
    from skindx.scan.work.worker_processes import LocalWorkers

    workers = LocalWorkers.for_scan("postgresql+psycopg://ann:geheim@host/leases", "t", 1)
    assert "geheim" not in " ".join(workers.command)
    assert "geheim" in workers.queue


def test_a_scan_whose_parts_are_links_is_not_kept(tmp_path: Path) -> None:
    from skindx.casebook.scan_book import _read_files

    scan, secret = tmp_path / "scan", tmp_path / "secret"
    for folder in (scan / "crops", scan / "overviews", secret):
        folder.mkdir(parents=True)
    for name in ("scan.json", "lesions.parquet", "scan.html", "crops/1.jpg"):
        (scan / name).write_bytes(b"x")
    (secret / "photo.jpg").write_bytes(b"another's")
    assert set(_read_files(scan)) == {"scan.json", "lesions.parquet", "scan.html", "crops/1.jpg"}
    (scan / "crops/2.jpg").symlink_to(secret / "photo.jpg")
    with pytest.raises(UserError, match="is not complete:"):
        _read_files(scan)
    shutil.rmtree(scan / "crops")
    (scan / "crops").symlink_to(secret)
    with pytest.raises(UserError, match="is a link"):
        _read_files(scan)
