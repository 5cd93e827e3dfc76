"""The pool with real processes: it answers, survives what happens to its workers, and ends."""

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from decoder_watch import descendants
from network_guard import guarded_environment

from skindx.core.errors import JobError, UserError
from skindx.diagnosis.bundle_statement import bundle_version
from skindx.diagnosis.case import Case, Patient
from skindx.diagnosis.photo_checks import Refused
from skindx.diagnosis.record import CaseAnswer, PhotoView
from skindx.diagnosis.scope import not_judged
from skindx.models.bundle.bundle import open_bundle
from skindx.ui.diagnosis_pool import Busy, DiagnosisPool, Unanswered, load_bundle
from skindx.workers import worker_process
from skindx.workers.worker_pool import PoolSettings

QUICK = (sys.executable, str(Path(__file__).parents[1] / "support/quick_worker.py"))


@asynccontextmanager
async def pool_of(**settings: float) -> AsyncIterator[DiagnosisPool]:
    async with DiagnosisPool(QUICK, PoolSettings.parse({"workers": 1} | settings)) as pool:
        yield pool


def workers(parent: int | None = None) -> list[int]:
    """Return the pool's workers below one process, this one by default."""
    below = descendants(parent or os.getpid())
    return [pid for pid in below if not over(pid) and b"quick_worker" in command_of(pid)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.02)


def over(pid: int) -> bool:
    """Tell whether a process has ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_case_is_the_same_on_the_other_side() -> None:
    case = Case((b"one", b"two"), Patient(age=40, site="back", skin_type=3))
    assert worker_process.rebuilt(Case, worker_process.plain(case)) == case
    with pytest.raises(ValueError, match=r"1 to 3"):
        worker_process.rebuilt(Case, {"photos": [b"x"] * 4, "patient": {}})


def test_a_pool_answers_and_tells_what_is_wrong() -> None:
    async def scenario() -> None:
        async with pool_of(workers=2, waiting=64) as pool:
            assert pool.status.ready == 2
            cases = [Case((b"photo %d" % n,), Patient(age=n)) for n in range(40)]
            answers = await asyncio.gather(*(pool.diagnose(case) for case in cases))
            for case, answer in zip(cases, answers, strict=True):
                sha256 = hashlib.sha256(case.photos[0]).hexdigest()
                assert answer.diagnosis.photos[0].sha256 == sha256
                assert answer.diagnosis.patient == case.patient
                assert answer.views == (PhotoView(case.photos[0] * 1000, b"heat"),)
                assert answer.thumbnails == (b"", b"thumbnail")
            said = [b"refuse", b"wrong", b"break", b"photo"]
            reported = await asyncio.gather(
                *(pool.diagnose(Case((path,))) for path in said), return_exceptions=True
            )
            assert isinstance(reported[0], Refused)
            assert (reported[0].gate, str(reported[0])) == (
                "blur",
                f"it is blurred. {not_judged()}",
            )
            assert str(reported[1]) == "it is wrong."
            assert isinstance(reported[2], Unanswered)
            assert isinstance(reported[3], CaseAnswer)  # whatever was in one batch with it
            assert pool.status.restarts == 0
            pids = workers()
        assert all(over(pid) for pid in pids)

    asyncio.run(scenario())


def test_a_killed_worker_comes_back_and_its_case_is_answered() -> None:
    async def scenario() -> None:
        async with pool_of() as pool:
            (pid,) = workers()
            os.kill(pid, signal.SIGKILL)  # while it has nothing to do
            await until(lambda: pool.status.restarts == 1 and pool.status.ready == 1)
            assert pool.status.restarts == 1
            (pid,) = workers()
            os.kill(pid, signal.SIGSTOP)  # so that it surely dies with the case in its hands
            asked = asyncio.ensure_future(pool.diagnose(Case((b"photo",))))
            await asyncio.sleep(0.1)
            assert not pool.status.waiting
            os.kill(pid, signal.SIGKILL)
            assert (await asked).diagnosis.candidates
            assert pool.status.restarts == 2
            assert pool.status.problem == ""

    asyncio.run(scenario())


@pytest.mark.parametrize("does", [b"die", b"hang"])
def test_a_case_that_breaks_its_workers_harms_no_other(does: bytes) -> None:
    async def scenario() -> None:
        async with pool_of(work_s=1.0, batch=8) as pool:
            os.kill(workers()[0], signal.SIGSTOP)  # until all of them wait, and go in one batch
            said = [b"zero", b"one", does, b"two"]
            asked = [asyncio.ensure_future(pool.diagnose(Case((path,)))) for path in said]
            await asyncio.sleep(0.1)
            os.kill(workers()[0], signal.SIGCONT)
            reported = await asyncio.gather(*asked, return_exceptions=True)
            assert isinstance(reported.pop(2), Unanswered)
            assert all(isinstance(message, CaseAnswer) for message in reported)
            await until(lambda: pool.status.ready == 1)

    asyncio.run(scenario())


def test_too_many_cases_are_refused_and_none_waits_for_ever() -> None:
    async def scenario() -> None:
        async with pool_of(waiting=2, batch=1, patience_s=1.0) as pool:
            (pid,) = workers()
            os.kill(pid, signal.SIGSTOP)
            asked = []
            for n in range(3):  # one is in the worker's hands, two wait
                asked.append(asyncio.ensure_future(pool.diagnose(Case((b"%d" % n,)))))
                await asyncio.sleep(0.05)
            with pytest.raises(Busy) as refused:
                await pool.diagnose(Case((b"one more",)))
            assert refused.value.retry_after_s > 0
            for case in asked:
                with pytest.raises(Unanswered, match="in time"):
                    await case
            assert pool.status.waiting == 0
            os.kill(pid, signal.SIGCONT)
            assert await pool.diagnose(Case((b"later",)))

    asyncio.run(scenario())


def test_the_photos_that_wait_are_bounded_in_bytes() -> None:
    async def scenario() -> None:
        async with pool_of(waiting_mb=64, batch=1, patience_s=1.0) as pool:
            (pid,) = workers()
            os.kill(pid, signal.SIGSTOP)
            large = Case((bytes(20 << 20),))
            asked = []
            for _ in range(4):  # one is in the worker's hands, three wait
                asked.append(asyncio.ensure_future(pool.diagnose(large)))
                await asyncio.sleep(0.05)
            with pytest.raises(Busy):
                await pool.diagnose(large)
            small = asyncio.ensure_future(pool.diagnose(Case((b"small",))))
            for case in (*asked, small):
                with pytest.raises(Unanswered):
                    await case
            os.kill(pid, signal.SIGCONT)

    asyncio.run(scenario())


def test_a_stopped_pool_lets_nobody_wait() -> None:
    async def scenario() -> None:
        async with pool_of(batch=1) as pool:
            os.kill(workers()[0], signal.SIGSTOP)
            asked = [asyncio.ensure_future(pool.diagnose(Case((b"%d" % n,)))) for n in range(3)]
            await asyncio.sleep(0.1)
        for case in asked:
            with pytest.raises(Unanswered, match="stopped"):
                await case

    asyncio.run(scenario())


def test_a_pool_that_cannot_start_says_why() -> None:
    async def start(command: tuple[str, ...]) -> None:
        async with DiagnosisPool(command, PoolSettings(workers=2)):
            raise AssertionError("it must not start")

    with pytest.raises(UserError, match=r"the bundle is damaged\."):
        asyncio.run(start((*QUICK, "unusable")))
    with pytest.raises(JobError, match="before it was ready"):
        asyncio.run(start((sys.executable, "-c", "pass")))


def test_only_the_bundle_that_was_checked_is_loaded(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting in ("torch.set_num_threads", "cv2.setNumThreads"):
        monkeypatch.setattr(setting, lambda threads: None)  # other tests have theirs
    with pytest.raises(UserError, match="was replaced"):
        load_bundle(tiny_bundle, "0" * 64)
    version = bundle_version(open_bundle(tiny_bundle))
    with pytest.raises(UserError, match="no threshold for any miss rate"):
        load_bundle(tiny_bundle, version, miss_rate=0.05)


ORPHANS = """
import asyncio, sys
from skindx.diagnosis.case import Case
from skindx.ui.diagnosis_pool import DiagnosisPool
from skindx.workers.worker_pool import PoolSettings
from skindx.diagnosis.scope import not_judged
async def run():
    async with DiagnosisPool(sys.argv[1:], PoolSettings(workers=2)) as pool:
        asyncio.ensure_future(pool.diagnose(Case((b"hang",))))
        await asyncio.sleep(0.1)
        print("ready", flush=True)
        await asyncio.sleep(600)
asyncio.run(run())
"""


def test_workers_end_with_a_server_that_was_killed(tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", ORPHANS, *QUICK],
        env=guarded_environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        pids = workers(server.pid)
        assert len(pids) == 2
        folders = [environment_of(pid)["TMPDIR"] for pid in pids]
        assert all(Path(folder).is_dir() for folder in folders)
        server.kill()
    deadline = time.monotonic() + 30
    while not all(over(pid) for pid in pids):
        assert time.monotonic() < deadline, "a worker outlived its server"
        time.sleep(0.05)
    assert not any(Path(folder).exists() for folder in folders)


def environment_of(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(part.split("=", 1) for part in text.split("\0") if "=" in part)
