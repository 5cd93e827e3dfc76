"""Unexpected errors leave where they happened in the log, and nothing of what a person sent."""

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from skindx.casebook.casebook import Casebook
from skindx.core.errors import UserError
from skindx.diagnosis.case import Case, Patient
from skindx.diagnosis.record import CaseAnswer
from skindx.taxonomy import load_taxonomy
from skindx.ui.diagnosis_pool import answer_cases
from skindx.ui.page.casebook_page import _shown
from skindx.ui.page_basics import log_fault, stoppable

SECRET = "P-017 left forearm"


def test_a_fault_is_logged_without_its_message(caplog: pytest.LogCaptureFixture) -> None:
    def inner() -> None:
        raise ValueError(SECRET)

    try:
        try:
            inner()
        except ValueError as error:
            raise RuntimeError(f"again {SECRET}") from error
    except RuntimeError as error:
        log_fault(logging.getLogger("x"), "a case could not be kept", error)
    (record,) = caplog.records
    reported = record.getMessage()
    assert reported.startswith("a case could not be kept: RuntimeError")
    assert "ValueError" in reported
    assert "inner" in reported
    assert Path(__file__).name in reported
    assert SECRET not in caplog.text


UNCAUGHT = f"""
import asyncio, logging, sys, threading, traceback
from skindx.ui.page_basics import hide_messages
hide_messages()
def fail(): raise ValueError({SECRET!r})
try: fail()
except ValueError: logging.getLogger("library").exception("a library reports")
try: fail()
except ValueError: traceback.print_exc()
thread = threading.Thread(target=fail); thread.start(); thread.join()
async def lost():
    asyncio.get_running_loop().create_task(failing()); await asyncio.sleep(0.01)
async def failing(): fail()
asyncio.run(lost())
fail()
"""


def test_what_nobody_caught_is_reported_without_its_message() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNCAUGHT],
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.count("ValueError") == 5, done.stderr
    assert "a library reports" in done.stderr
    assert "never retrieved" in done.stderr
    assert SECRET not in done.stderr


def test_a_worker_s_log_holds_nothing_of_the_case(caplog: pytest.LogCaptureFixture) -> None:
    def fail(cases: Sequence[Case]) -> list[CaseAnswer | UserError]:
        raise ValueError(f"{SECRET} {cases[0].patient}")

    case = Case((b"photo",), Patient(age=47, site="back"))
    assert answer_cases(fail, [case, case]) == [{"failed": True}] * 2
    assert "ValueError" in caplog.text
    for secret in (SECRET, "47", "back"):
        assert secret not in caplog.text


def test_a_case_book_that_fails_is_a_sentence_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    book, taxonomy = Casebook.open(tmp_path / "cases.db"), load_taxonomy("isic9")

    def fail(*_: object) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(Casebook, "lesions", fail)
    html = _shown(book, taxonomy, "ann", {})
    assert "Something went wrong on the server" in html
    monkeypatch.undo()
    book.keys.path.unlink()
    html = _shown(book, taxonomy, "ann", {})
    assert "The key file of the case book cannot be used" in html
    assert str(tmp_path) not in html
    assert "is missing" in caplog.text
    assert SECRET not in caplog.text


def test_a_signal_to_stop_is_not_lost_while_an_object_is_deleted() -> None:
    class Deleted:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    def waits() -> None:
        Deleted()
        time.sleep(5)

    with pytest.raises(KeyboardInterrupt), stoppable():
        waits()
