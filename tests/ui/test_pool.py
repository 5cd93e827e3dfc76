"""The pool with real processes: it answers, survives what happens to its workers, and ends."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from network_guard import guarded_environment
from PIL import Image
from tiny_bundle import pack_tiny

from skindx.diagnosis.answer import Answer, View
from skindx.diagnosis.case import Case, Patient
from skindx.diagnosis.diagnose import bundle_version
from skindx.errors import UserError
from skindx.models.bundle import open_bundle
from skindx.ui.pool import wire
from skindx.ui.pool.errors import Busy, Unanswered
from skindx.ui.pool.line import Line, Ticket
from skindx.ui.pool.pool import Pool, PoolSettings


def photo(seed: int = 0, size: tuple[int, int] = (120, 90)) -> bytes:
    small = np.random.default_rng(seed).integers(90, 220, (9, 12, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize(size).save(file, "JPEG", quality=92)
    return file.getvalue()


@pytest.fixture(scope="module")
def bare_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle without detector: a worker is ready in a moment."""
    return pack_tiny(tmp_path_factory.mktemp("bare") / "bundle").path


@asynccontextmanager
async def pool_of(bundle: Path, **settings: float) -> AsyncIterator[Pool]:
    version = bundle_version(open_bundle(bundle))
    async with Pool(bundle, version, PoolSettings.parse({"workers": 1} | settings)) as pool:
        yield pool


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


@pytest.mark.parametrize(
    "value",
    [None, [], {"a": [1, 2.5, "ü", b"", {"b": b"\x00\xff"}]}, [b"x" * 100_000, b"y"], {"n": True}],
)
def test_messages_come_through_as_they_are(value: object) -> None:
    message = wire.pack(value)
    at = wire.LENGTH_BYTES + int.from_bytes(message[: wire.LENGTH_BYTES], "big")
    head, blobs = message[wire.LENGTH_BYTES : at], []
    for size in wire.blob_sizes(head):
        blobs.append(message[at : at + size])
        at += size
    assert at == len(message)
    assert wire.unpack(head, blobs) == value


def test_a_case_is_the_same_on_the_other_side() -> None:
    case = Case((b"one", b"two"), Patient(age=40, site="back", skin_type=3))
    assert wire.rebuilt(Case, wire.plain(case)) == case
    with pytest.raises(ValueError, match=r"1 to 3"):
        wire.rebuilt(Case, {"photos": [b"x"] * 4, "patient": {}})


def test_the_line_is_shared_out_fairly() -> None:
    async def scenario() -> None:
        line = Line(10)
        takers = [asyncio.ensure_future(line.take(4)) for _ in range(2)]
        await asyncio.sleep(0)
        tickets = [Ticket(Case((bytes([n]),))) for n in range(5)]
        tickets[3].tries = 1
        for each in tickets:
            await line.join(each)
        first, second = await asyncio.gather(*takers)
        rest = [await line.take(4) for _ in range(len(line) and 2)]
        taken = [first, second, *rest]
        assert [each for group in taken for each in group] == tickets
        assert len(first) <= 3, "the second worker had nothing to do"
        assert second
        # What a worker was lost with comes alone.
        assert [tickets[3]] in taken

    asyncio.run(scenario())


def test_a_pool_answers_and_tells_what_is_wrong(bare_bundle: Path) -> None:
    async def scenario() -> None:
        async with pool_of(bare_bundle, workers=2, waiting=64) as pool:
            assert pool.status.ready == 2
            cases = [Case((photo(n),)) for n in range(12)]
            answers = await asyncio.gather(*(pool.diagnose(each) for each in cases))
            assert all(isinstance(each, Answer) for each in answers)
            assert all(isinstance(each.views[0], View) for each in answers)
            assert len({each.diagnosis.photos[0].sha256 for each in answers}) == 12
            bad = pool.diagnose(Case((b"no picture",)))
            told = await asyncio.gather(bad, pool.diagnose(cases[0]), return_exceptions=True)
            assert isinstance(told[0], UserError)
            assert isinstance(told[1], Answer)
            assert told[1].diagnosis.candidates[0].key == answers[0].diagnosis.candidates[0].key
            pids = pool.pids
        assert all(over(pid) for pid in pids)

    asyncio.run(scenario())


def test_a_killed_worker_comes_back_and_its_case_is_answered(bare_bundle: Path) -> None:
    async def scenario() -> None:
        async with pool_of(bare_bundle) as pool:
            (pid,) = pool.pids
            os.kill(pid, signal.SIGKILL)  # while it has nothing to do
            await until(lambda: pool.pids not in ([pid], []))
            assert pool.status.restarts == 1
            (pid,) = pool.pids
            os.kill(pid, signal.SIGSTOP)  # so that it surely dies with the case in its hands
            asked = asyncio.ensure_future(pool.diagnose(Case((photo(),))))
            await until(lambda: not pool.status.waiting)
            await asyncio.sleep(0.05)
            os.kill(pid, signal.SIGKILL)
            answer = await asked
            assert answer.diagnosis.candidates
            assert pool.status.restarts == 2

    asyncio.run(scenario())


def test_a_case_that_always_breaks_its_worker_is_given_up(bare_bundle: Path) -> None:
    async def scenario() -> None:
        async with pool_of(bare_bundle, work_s=0.2) as pool:
            asked = asyncio.ensure_future(pool.diagnose(Case((photo(),))))
            for _ in range(2):
                await until(lambda: bool(pool.pids))
                with_it = pool.pids[0]
                os.kill(with_it, signal.SIGSTOP)
                await until(lambda pid=with_it: over(pid))  # type: ignore[misc]
            with pytest.raises(Unanswered, match="try another photo"):
                await asked
            await until(lambda: bool(pool.pids))

    asyncio.run(scenario())


def test_too_many_cases_are_refused_and_none_waits_for_ever(bare_bundle: Path) -> None:
    async def scenario() -> None:
        async with pool_of(bare_bundle, waiting=2, batch=1, patience_s=0.5) as pool:
            (pid,) = pool.pids
            os.kill(pid, signal.SIGSTOP)
            asked = []
            for n in range(3):  # one is in the worker's hands, two wait
                asked.append(asyncio.ensure_future(pool.diagnose(Case((photo(n),)))))
                await asyncio.sleep(0.05)
            with pytest.raises(Busy) as refused:
                await pool.diagnose(Case((photo(9),)))
            assert refused.value.retry_after_s > 0
            for each in asked:
                with pytest.raises(Unanswered, match="in time"):
                    await each
            assert pool.status.waiting == 0
            os.kill(pid, signal.SIGCONT)

    asyncio.run(scenario())


def test_a_stopped_pool_lets_nobody_wait(bare_bundle: Path) -> None:
    async def scenario() -> None:
        async with pool_of(bare_bundle, batch=1) as pool:
            os.kill(pool.pids[0], signal.SIGSTOP)
            asked = [asyncio.ensure_future(pool.diagnose(Case((photo(n),)))) for n in range(3)]
            await asyncio.sleep(0.1)
        for each in asked:
            with pytest.raises(Unanswered, match="stopped"):
                await each

    asyncio.run(scenario())


def test_a_bundle_that_was_replaced_is_not_loaded(bare_bundle: Path, tmp_path: Path) -> None:
    async def start(bundle: Path, version: str) -> None:
        async with Pool(bundle, version, PoolSettings(workers=2)):
            raise AssertionError("it must not start")

    with pytest.raises(UserError, match="was replaced"):
        asyncio.run(start(bare_bundle, "0" * 64))
    with pytest.raises(UserError, match="does not exist"):
        asyncio.run(start(tmp_path / "none", "0" * 64))


ORPHANS = """
import asyncio, sys
from pathlib import Path
from skindx.ui.pool.pool import Pool, PoolSettings
async def run():
    async with Pool(Path(sys.argv[1]), sys.argv[2], PoolSettings(workers=2)) as pool:
        print(*pool.pids, flush=True)
        await asyncio.sleep(600)
asyncio.run(run())
"""


def test_workers_end_with_a_server_that_was_killed(bare_bundle: Path, tmp_path: Path) -> None:
    version = bundle_version(open_bundle(bare_bundle))
    server = subprocess.Popen(
        [sys.executable, "-c", ORPHANS, bare_bundle, version],
        env=guarded_environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        assert server.stdout is not None
        pids = [int(each) for each in server.stdout.readline().split()]
        assert len(pids) == 2
        server.kill()
    deadline = time.monotonic() + 30
    while not all(over(pid) for pid in pids):
        assert time.monotonic() < deadline, "a worker outlived its server"
        time.sleep(0.05)
