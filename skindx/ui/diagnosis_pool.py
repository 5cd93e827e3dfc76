"""Processes that diagnose: cases wait in one line, each process has one thread and one bundle."""

import json
import logging
import socket
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from skindx.core.errors import UserError
from skindx.core.machine import go_offline
from skindx.core.startup import collect_rarely
from skindx.diagnosis.case import Case
from skindx.diagnosis.photo_checks import Refusal, Refused, file_hash
from skindx.diagnosis.record import CaseAnswer
from skindx.texts.catalogue import speaking, text
from skindx.ui.page_basics import hide_messages, log_fault
from skindx.workers import worker_process
from skindx.workers.worker_pool import (
    NoAnswerError,
    PoolSettings,
    PoolStatus,
    QueueFullError,
    WorkerPool,
)
from skindx.workers.worker_process import Answers, module_command, serve


class Diagnoser(Protocol):
    """What answers cases: a pool of processes behind a server, or one predictor in a test."""

    async def diagnose(self, case: Case) -> CaseAnswer:
        """Answer a case. Raises Refused for a photo that cannot be judged, UserError otherwise."""


class Busy(UserError):  # noqa: N818
    """Too many cases wait already."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(text("problem_busy", seconds=retry_after_s))
        self.retry_after_s = retry_after_s


class Unanswered(UserError):  # noqa: N818
    """A case that was tried and not answered: the server's fault, or a photo's that breaks it."""


_UNANSWERED = {
    "failed": "problem_photo",
    "late": "problem_late",
    "stopped": "problem_stopped",
}


class DiagnosisPool:
    """Processes that diagnose; `command` starts one, see `loading.worker_command`."""

    def __init__(self, command: Sequence[str], settings: PoolSettings) -> None:
        self._pool: WorkerPool[Case, CaseAnswer] = WorkerPool(
            command,
            settings,
            encode=worker_process.plain,
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
            with speaking(case.language):
                raise Busy(error.retry_after_s) from None
        except NoAnswerError as error:
            with speaking(case.language):
                raise Unanswered(text(_UNANSWERED[error.reason])) from None


def _decode(plain: dict[str, Any]) -> CaseAnswer | Exception:
    """Return what `worker.serve_cases` sent for one case."""
    if "answer" in plain:
        return worker_process.rebuilt(CaseAnswer, plain["answer"])
    if "refused" in plain:
        refusals = tuple(worker_process.rebuilt(Refusal, refusal) for refusal in plain["refusals"])
        return Refused(plain["gate"], plain["refused"], plain["photo"], refusals)
    if "error" in plain:
        return UserError(plain["error"])
    return NoAnswerError("failed")


log = logging.getLogger(__name__)

Answerer = Callable[[Sequence[Case]], Sequence[CaseAnswer | UserError]]


def serve_cases(connection: socket.socket, folder: Path, load: Callable[[], Answerer]) -> None:
    """Answer cases until the connection closes; the process ends then.

    `load` returns what answers cases; a UserError that it raises is sent as why it cannot.
    """

    def prepare() -> Answers:
        answer_many = load()
        return lambda batch: answer_cases(
            answer_many, [worker_process.rebuilt(Case, plain) for plain in batch]
        )

    serve(connection, folder, prepare)


def answer_cases(answer_many: Answerer, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Return a message for each case; an error of one spoils it for no other."""
    try:
        return [_message(answer) for answer in answer_many(cases)]
    except Exception as error:
        if len(cases) > 1:  # one of them spoils it for all
            return [message for case in cases for message in answer_cases(answer_many, [case])]
        log_fault(log, "a case could not be answered", error)
        return [{"failed": True}]


def _message(answer: CaseAnswer | UserError) -> dict[str, Any]:
    if isinstance(answer, Refused):
        refusals = [worker_process.plain(refusal) for refusal in answer.refusals]
        return {
            "refused": str(answer),
            "gate": answer.gate,
            "photo": answer.photo,
            "refusals": refusals,
        }
    if isinstance(answer, UserError):
        return {"error": str(answer)}
    return {"answer": worker_process.plain(answer)}


def worker_command(
    bundle: Path,
    version: str,
    expect: str | None = None,
    miss_rate: float | None = None,
    prevalence: Path | None = None,
    *,
    monitor: Path | None = None,
    examples: Collection[str] = (),
) -> tuple[str, ...]:
    """Return what starts a worker; `worker.started` adds a connection and a folder."""
    files = (path and str(path.resolve()) for path in (bundle, prevalence, monitor))
    served = json.dumps([[*examples], version, expect, miss_rate, *files])
    return module_command("skindx.ui.diagnosis_pool", served)


def load_bundle(
    bundle: Path,
    version: str,
    expect: str | None = None,
    miss_rate: float | None = None,
    prevalence: Path | None = None,
    *,
    monitor: Path | None = None,
    examples: Collection[str] = (),
) -> Answerer:
    """Return what answers cases by a bundle.

    Raises UserError for one that is not whole, one that is no longer of this `version`, one that
    does not have the digest which is expected, one without a threshold for the miss rate, and one
    that the file of the prevalence does not fit. `monitor` is the file that counts its photos;
    `examples` are hashes of photos that it does not count, and that each answer names as such.
    """
    import cv2
    import torch

    # One photo is too little work to share: two threads wait for each other at barriers, many
    # times as long when anything else runs on the machine. Several workers use several cores.
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    from skindx.diagnosis.bundle_statement import bundle_version
    from skindx.diagnosis.diagnose import answer_many
    from skindx.diagnosis.predictor import Predictor

    predictor = Predictor.load(bundle, expect=expect, miss_rate=miss_rate, prevalence=prevalence)
    if bundle_version(predictor.bundle) != version:
        raise UserError(
            f"bundle {bundle} was replaced while the server was running; start `skindx serve` "
            "again."
        )
    if monitor is None:
        return _marking(partial(answer_many, predictor), None, examples)
    from skindx.monitor.monitor_file import MonitorFile
    from skindx.monitor.photo_numbers import PhotoNumbers

    numbers = PhotoNumbers(predictor.bundle, predictor.ood)
    file = MonitorFile.create(monitor, numbers, version)

    def observe(photos: Sequence[Any], output: Any, places: Sequence[int]) -> None:
        try:
            file.add(numbers.of_photos(predictor.ensemble, photos, output, places))
        except Exception as error:  # an answer never fails for the monitor's sake
            log_fault(log, "the monitor could not count a photo", error)

    return _marking(partial(answer_many, predictor), observe, examples)


def _marking(
    answer_many: Callable[..., Sequence[CaseAnswer | UserError]],
    observe: Callable[..., None] | None,
    examples: Collection[str],
) -> Answerer:
    """Return an answerer that says of examples what they are, and lets nothing observe them."""

    def answer(cases: Sequence[Case]) -> Sequence[CaseAnswer | UserError]:
        tried = [any(file_hash(photo) in examples for photo in case.photos) for case in cases]
        answers: dict[int, CaseAnswer | UserError] = {}
        for example in sorted({*tried}):
            places = [place for place, one in enumerate(tried) if one == example]
            asked = [cases[place] for place in places]
            found = answer_many(asked, None if example else observe)
            answers |= zip(places, map(_marked, found) if example else found, strict=True)
        return [answers[place] for place in range(len(cases))]

    return answer if examples else partial(answer_many, observe=observe)


def _marked(answer: CaseAnswer | UserError) -> CaseAnswer | UserError:
    if isinstance(answer, UserError):
        return answer
    with speaking(answer.diagnosis.language):
        said = text("remark_example")
    photos = [
        photo.model_copy(update={"remarks": (said, *photo.remarks)})
        for photo in answer.diagnosis.photos
    ]
    diagnosis = answer.diagnosis.model_copy(update={"photos": tuple(photos)})
    return replace(answer, diagnosis=diagnosis)


def main(arguments: Sequence[str]) -> None:
    """Run a worker: what `worker_command` gives it, DESCRIPTOR FOLDER."""
    go_offline()
    collect_rarely()
    hide_messages()
    served, descriptor, folder = arguments
    examples, version, expect, miss_rate, bundle, *others = json.loads(served)
    prevalence, monitor = (path and Path(path) for path in others)
    given = (Path(bundle), version, expect, miss_rate, prevalence)
    with socket.socket(fileno=int(descriptor)) as connection:
        load = partial(load_bundle, *given, monitor=monitor, examples=examples)
        serve_cases(connection, Path(folder), load)


if __name__ == "__main__":
    main(sys.argv[1:])
