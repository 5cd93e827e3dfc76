"""A pool of any workers: it answers, starts lost workers again, and refuses what it cannot hold."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skindx.core.errors import JobError, UserError
from skindx.workers.worker_pool import NoAnswerError, PoolSettings, QueueFullError, WorkerPool

ECHO = (sys.executable, str(Path(__file__).parents[1] / "support/echo_worker.py"))


@asynccontextmanager
async def pool_of(
    *arguments: str, command: tuple[str, ...] = ECHO, **settings: float
) -> AsyncIterator[WorkerPool[Any, Any]]:
    pool: WorkerPool[Any, Any] = WorkerPool(
        (*command, *arguments),
        PoolSettings.parse({"workers": 1} | settings),
        encode=lambda question: question,
        decode=lambda plain: ValueError("wrong") if plain == "wrong" else plain,
        size_bytes=lambda question: len(question) if isinstance(question, bytes) else 0,
    )
    async with pool:
        yield pool


def test_questions_are_answered_and_errors_raised() -> None:
    async def scenario() -> None:
        async with pool_of(workers=2) as pool:
            questions: list[Any] = [1, "two", b"three", {"four": [b"\x00"]}, None]
            assert await asyncio.gather(*map(pool.ask, questions)) == questions
            with pytest.raises(ValueError, match="wrong"):
                await pool.ask("wrong")
            assert (pool.status.ready, pool.status.restarts) == (2, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize(("question", "tries"), [("die", 2), ("crash", 1), ("hang", 1)])
def test_a_lost_worker_is_started_again(question: str, tries: int) -> None:
    """Only a worker that may have been killed from outside gets its question once more."""

    async def scenario() -> None:
        async with pool_of(work_s=0.5) as pool:
            first = await pool.ask("pid")
            for _ in range(2):  # the second time no worker gets it
                with pytest.raises(NoAnswerError) as caught:
                    await pool.ask(question)
                assert caught.value.reason == "failed"
            assert await pool.ask("pid") != first
            assert pool.status.restarts == tries

    asyncio.run(scenario())


def test_a_full_queue_refuses_and_nobody_waits_for_ever() -> None:
    async def scenario() -> None:
        async with pool_of(waiting_mb=64, patience_s=0.5, batch=1) as pool:
            os.kill(await pool.ask("pid"), signal.SIGSTOP)
            in_work = asyncio.ensure_future(pool.ask("one"))
            await asyncio.sleep(0.1)
            with pytest.raises(QueueFullError):
                await pool.ask(bytes(65 << 20))
            with pytest.raises(NoAnswerError) as caught:
                await in_work
            assert caught.value.reason == "late"

    asyncio.run(scenario())


def test_a_pool_that_cannot_start_says_why() -> None:
    async def start(*arguments: str, command: tuple[str, ...] = ECHO) -> None:
        async with pool_of(*arguments, command=command):
            raise AssertionError("it must not start")

    with pytest.raises(UserError, match=r"the model is damaged\."):
        asyncio.run(start("unusable"))
    with pytest.raises(JobError, match="before it was ready"):
        asyncio.run(start(command=(sys.executable, "-c", "pass")))
