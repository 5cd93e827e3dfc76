"""Slices 1 and 2: the tests marked `gpu`, and the trainer beside timm's script and the ceiling."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import sha256_file, write_json
from skindx.core.errors import UserError
from skindx_bench.devices import gpu
from skindx_bench.gpu_release import done_tests, toy
from skindx_bench.gpu_release.pieces import Config, Files, Piece, refuse_failed
from skindx_bench.harness.parts import Outcome
from skindx_bench.harness.result import Result, hardware, median, ratio

ASKED = {"ours_over_timm": 1.15, "ours_over_ceiling": 0.6}
"""Least ratios that slice 2 is asked for."""


class GpuTests:
    """Slice 1: the tests marked `gpu`, of all three distributions."""

    needs_gpu = True

    def __init__(self, settings: Config, folder: Path) -> None:
        self._settings, self._root = settings, gpu.checkout()
        if settings.fake:
            self._root = toy.tests(folder)
        self._tests = gpu.gpu_tests(self._root)
        if not self._tests:
            raise UserError("slice 1 runs the tests of skindx; start it in a checkout.")

    def inputs(self) -> Files:
        return {}

    def made_from(self) -> dict[str, Any]:
        hashes = {test: sha256_file(self._root / test) for test in self._tests}
        return {"tests": hashes}

    def next(self, work: Path) -> Piece | None:
        if (work / "tests.json").is_file():
            return None
        options = ["-p", "skindx_bench.gpu_release.done_tests", "--timeout", "200"]
        command = gpu.pytest_command(
            self._root, self._tests, options, workers=0 if self._settings.fake else 4
        )
        return Piece("tests", command, 0, {done_tests.FILE: str(work / "outcomes.jsonl")})

    def take(self, work: Path, piece: Piece, outcome: Outcome) -> None:
        if outcome.code in (0, 1, 5):  # all passed, some failed, none was left
            write_json(work / "tests.json", self._counts(work))
        else:
            refuse_failed(piece, outcome)

    def progress(self, work: Path) -> str:
        return f"{len(done_tests.read_outcomes(work / 'outcomes.jsonl'))} tests"

    def carried(self, work: Path) -> Iterator[Path]:
        yield from work.glob("outcomes.jsonl")
        yield from work.glob("tests.json")

    def result(self, work: Path) -> Result:
        counts = self._counts(work)
        bad = f"; failed: {', '.join(counts['failed'])}" if counts["failed"] else ""
        note = (
            f"tests marked gpu: {counts['passed']} passed, {len(counts['failed'])} failed, "
            f"{len(counts['skipped'])} skipped{bad}."
        )
        return Result("gpu-release", {}, notes=(note,), parts={"tests": counts})

    @staticmethod
    def _counts(work: Path) -> dict[str, Any]:
        rows = done_tests.read_outcomes(work / "outcomes.jsonl").values()
        failed = [row["test"] for row in rows if row["outcome"] == "failed"]
        return {
            "status": "failed" if failed else "passed",
            "passed": sum(row["outcome"] == "passed" for row in rows),
            "failed": failed,
            "skipped": {
                row["test"]: row.get("why", "") for row in rows if row["outcome"] == "skipped"
            },
        }


class TrainerTurns:
    """Slice 2: the trainer, timm's script and the ceiling in interleaved rounds, in some turns.

    A turn is a process: what it has compiled and measured ends with it, so it is whole or nothing.
    """

    needs_gpu = True

    def __init__(self, settings: Config, folder: Path) -> None:
        self._turns_wanted, self._turn_s = settings.turns, settings.turn_s
        self._fake = settings.fake
        self._batch, self._steps, self._rounds = settings.batch, settings.steps, settings.rounds
        if settings.fake:
            self._batch, self._steps, self._rounds = toy.BATCH, toy.STEPS, toy.ROUNDS

    def inputs(self) -> Files:
        return {}

    def made_from(self) -> dict[str, Any]:
        return {
            "accelerator": hardware()["accelerator"],  # rounds of two GPUs are not one sample
            "batch": self._batch,
            "steps": self._steps,
            "rounds": self._rounds,
            "turns": self._turns_wanted,
        }

    def _turns(self, work: Path) -> list[Path]:
        return [work / f"turn-{number}.json" for number in range(1, self._turns_wanted + 1)]

    def next(self, work: Path) -> Piece | None:
        file = next((file for file in self._turns(work) if not file.is_file()), None)
        if file is None:
            return None
        sets = (f"gpu_batch={self._batch}", f"gpu_steps={self._steps}", f"rounds={self._rounds}")
        sets = (*(gpu.TINY if self._fake else ()), *sets)
        command = gpu.trainer_command(file, sets, smallest=True)  # what is not of the GPU is tiny
        return Piece(file.stem, command, self._turn_s)

    def take(self, work: Path, piece: Piece, outcome: Outcome) -> None:
        refuse_failed(piece, outcome)

    def progress(self, work: Path) -> str:
        turns = self._turns(work)
        return f"{sum(file.is_file() for file in turns)} of {len(turns)} turns"

    def carried(self, work: Path) -> Iterator[Path]:
        yield from (file for file in self._turns(work) if file.is_file())

    def result(self, work: Path) -> Result:
        written = [json.loads(file.read_text(encoding="utf-8")) for file in self._turns(work)]
        turns = [turn["parts"]["gpu_rounds_s"] for turn in written]
        loops = list(turns[0])
        seconds = {loop: [taken for turn in turns for taken in turn[loop]] for loop in loops}
        rivals = [loop for loop in loops if loop != "trainer"]
        figures = {f"ours_over_{loop}": ratio(seconds["trainer"], seconds[loop]) for loop in rivals}
        images = self._steps * self._batch
        figures |= {
            loop: median([images / taken for taken in samples], "images/s")
            for loop, samples in seconds.items()
        }
        return Result(
            "gpu-release",
            figures,
            notes=(
                f"n: rounds, {self._rounds} in each of {self._turns_wanted} processes, in which "
                f"the loops take turns; {written[0]['notes'][-1]}",
            ),
            parts={
                "asked": {
                    key: {"least": least, "met": figures[key].value >= least}
                    for key, least in ASKED.items()
                },
                "turns": {
                    loop: [median(turn[loop], "s").value for turn in turns] for loop in loops
                },
                "machines": {str(number): turn["hardware"] for number, turn in enumerate(written)},
            },
        )
