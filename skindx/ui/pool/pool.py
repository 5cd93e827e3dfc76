"""The pool as a `Diagnoser`: cases go to worker processes, answers and refusals come back."""

from collections.abc import Sequence
from typing import Any, Self

from skindx.core.errors import UserError
from skindx.diagnosis.case import Case
from skindx.diagnosis.photo_checks import Refusal, Refused
from skindx.diagnosis.record import CaseAnswer
from skindx.ui.pool.errors import Busy, Unanswered
from skindx.workers import framing
from skindx.workers.pool import PoolSettings, PoolStatus, WorkerPool
from skindx.workers.request_queue import NoAnswerError, QueueFullError

_UNANSWERED = {
    "failed": "the photo could not be judged, the server failed at it; try another photo.",
    "late": "no answer came in time, the server is too busy; try again in a few minutes.",
    "stopped": "the server is being stopped; try again later.",
}


class Pool:
    """Processes that diagnose; `command` starts one, see `loading.worker_command`."""

    def __init__(self, command: Sequence[str], settings: PoolSettings) -> None:
        self._pool: WorkerPool[Case, CaseAnswer] = WorkerPool(
            command,
            settings,
            encode=framing.plain,
            decode=_decode,
            size_bytes=lambda case: sum(map(len, case.photos)),
        )

    async def __aenter__(self) -> Self:
        """Start the workers and wait until all are ready.

        Raises UserError for a bundle that cannot be loaded, JobError for a worker that ends.
        """
        await self._pool.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        """End the workers; cases that still wait get an error."""
        await self._pool.__aexit__(*error)

    @property
    def status(self) -> PoolStatus:
        """How many work and wait."""
        return self._pool.status

    async def diagnose(self, case: Case) -> CaseAnswer:
        """Answer a case. Raises Refused, Busy, Unanswered or another UserError; never hangs."""
        try:
            return await self._pool.ask(case)
        except QueueFullError as error:
            raise Busy(error.retry_after_s) from None
        except NoAnswerError as error:
            raise Unanswered(_UNANSWERED[error.reason]) from None


def _decode(plain: dict[str, Any]) -> CaseAnswer | Exception:
    """Return what `worker.serve_cases` sent for one case."""
    if "answer" in plain:
        return framing.rebuilt(CaseAnswer, plain["answer"])
    if "refused" in plain:
        refusals = tuple(framing.rebuilt(Refusal, refusal) for refusal in plain["refusals"])
        return Refused(plain["gate"], plain["refused"], plain["photo"], refusals)
    if "error" in plain:
        return UserError(plain["error"])
    return NoAnswerError("failed")
