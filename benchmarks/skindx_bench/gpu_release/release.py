"""What a GPU is needed for, in slices of some minutes: each goes on from small files.

`make gpu-release SLICE=3` again and again, here or where `state-3` was brought to, until it says
that the slice is finished. A kill at any moment loses the command in work at most, of a training
what came after its last checkpoint.
"""

import json
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import FolderKind, atomic_folder, only_writer, write_text
from skindx.core.errors import JobError, UserError
from skindx.training.config.engine import CHECKPOINTS
from skindx_bench.devices.gpu import AS_FAKE, FAKE, gpu_facts, short_name
from skindx_bench.gpu_release.carried import (
    INDEX,
    CarriedState,
    code_version,
    pack,
    read_index,
    unpack,
)
from skindx_bench.gpu_release.measured import GpuTests, TrainerTurns
from skindx_bench.gpu_release.pieces import Config as Config  # noqa: PLC0414 (of the bench)
from skindx_bench.gpu_release.pieces import Slice, came, figures_of
from skindx_bench.gpu_release.trained import LargeBatches, Networks
from skindx_bench.harness.parts import Part, run_part
from skindx_bench.harness.result import Result, changed_settings, hardware

SMALLEST = ("fake=true",)

SLICES: Mapping[int, Any] = {1: GpuTests, 2: TrainerTurns, 3: Networks, 4: LargeBatches}

_RESULT = "result.json"
_LAST_WORK_S = 60
"""So long a command waits for what a killed one has left at work."""
_WRITE_SHARE = 1 / 3
"""Of the reserve, for the state to be written; trainings save in the rest."""
_CAME = FolderKind("inputs that have travelled", INDEX, ("dataset", "weights"))


def run(settings: Config) -> Result:
    """Go on with a slice until it is finished or its time is over, which a note says.

    Raises UserError without a GPU where the slice needs one, without its inputs, and for a state
    that is damaged or of other settings or code; JobError when a command or a test failed.
    """
    begun = time.monotonic()
    folder = settings.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    number = settings.slice
    _take_inputs(folder, number)
    own: Slice = SLICES[number](settings, folder)
    if settings.prepare:
        return _prepare(own, settings, folder)
    lock = folder / f"lock-{number}"
    lock.touch()
    with only_writer(lock, f"gpu-release of slice {number}", _LAST_WORK_S) as held:
        made_from = {"slice": number, "fake": settings.fake, **own.made_from()}
        made_from["code"] = code_version()
        state = CarriedState(
            folder / f"state-{number}",
            folder / f"work-{number}",
            json.loads(json.dumps(made_from)),
            int(settings.part_mb * 1e6),
        )
        state.open()
        if not (state.work / _RESULT).is_file():
            machine = _machine(own, settings)
            before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
            try:
                whole = _work(own, state, settings, begun, held)
            finally:
                signal.signal(signal.SIGTERM, before)
            if not whole:
                return _unfinished(own, state, settings)
            made = replace(
                own.result(state.work), hardware=machine, settings=changed_settings(settings)
            )
            made.to_json(state.work / _RESULT)
            _pack(own, state, settings, state.work / _RESULT)
        else:
            print(f"slice {number} is finished; nothing was done", flush=True)
        return _finished(own, state, folder, number)


def _machine(own: Slice, settings: Config) -> dict[str, Any]:
    """Return this machine's facts. Raises UserError without a GPU that the slice needs."""
    if settings.fake:
        return {**hardware(), "accelerator": FAKE}
    try:
        name, facts = gpu_facts(f"slice {settings.slice} of bench gpu-release")
    except UserError:
        if own.needs_gpu:
            raise
        print("there is no GPU here; the networks are trained on the CPU", flush=True)
        return hardware()
    return {**hardware(), "accelerator": name, **facts}


def _work(own: Slice, state: CarriedState, settings: Config, begun: float, held: int) -> bool:
    """Run commands one after the other; False when the time is over before the last one's end."""
    environment = AS_FAKE if settings.fake else {"SKINDX_GPU": "cuda"}
    end = begun + settings.limit_s - settings.reserve_s
    logs = state.work / "logs"
    logs.mkdir(exist_ok=True)
    first = True
    while piece := own.next(state.work):
        left = end - time.monotonic()
        if left < piece.whole_s and not first:
            return False
        part = Part(piece.name, piece.command, max(left, 0.1))
        grace_s = settings.reserve_s * (1 - _WRITE_SHARE)
        variables = {**environment, **piece.environment}
        try:
            outcome = run_part(part, variables, logs, grace_s, cwd=state.work, held=held)
            own.take(state.work, piece, outcome)
        finally:
            _pack(own, state, settings)
        if outcome.status == "timed out":
            if first and piece.whole_s:
                raise JobError(
                    f"{piece.name} cannot go on from its middle and did not end in {left:.0f} s; "
                    "give a larger limit_s, or fewer steps or rounds."
                )
            return False
        first = False
    return True


def _pack(own: Slice, state: CarriedState, settings: Config, *more: Path) -> None:
    """Write the state, without checkpoints where it would be too large with them.

    Raises JobError where it is too large without them.
    """
    files = [*own.carried(state.work), *more]
    if _megabytes(files) > settings.state_mb:
        files = [file for file in files if CHECKPOINTS not in file.relative_to(state.work).parts]
        print(f"checkpoints are left out of {state.folder}: they would not fit", flush=True)
    if (size := _megabytes(files)) > settings.state_mb:
        raise JobError(
            f"the state of slice {settings.slice} has {size:.0f} MB, more than state_mb = "
            f"{settings.state_mb:g}; give more."
        )
    state.pack(files)


def _megabytes(files: Sequence[Path]) -> float:
    return sum(file.stat().st_size for file in files) / 1e6


def _unfinished(own: Slice, state: CarriedState, settings: Config) -> Result:
    """Return a result without figures, and say what the next command is."""
    number = settings.slice
    words = (
        f"slice {number} is not finished: {own.progress(state.work)} are. Next: the same command "
        f"(make gpu-release SLICE={number}), here or where {state.folder} is brought to"
    )
    print(words, flush=True)
    return Result("gpu-release", {}, partial=words)


def _finished(own: Slice, state: CarriedState, folder: Path, number: int) -> Result:
    """Write the result beside the state and return it. Raises JobError for failed tests."""
    text = (state.work / _RESULT).read_text(encoding="utf-8")
    written = json.loads(text)
    name = short_name(written["hardware"]["accelerator"])
    file = folder / f"gpu-release-{number}-{name}.json"
    write_text(file, text)
    print(f"slice {number} is finished: {own.progress(state.work)}. Written: {file}", flush=True)
    if written.get("parts", {}).get("tests", {}).get("failed"):
        raise JobError(f"{written['notes'][0]} Their output is in {state.work / 'logs'}.")
    return _read(written)


def _read(written: Mapping[str, Any]) -> Result:
    kept = ("hardware", "versions", "date", "models", "parts", "settings")
    rest = {key: written[key] for key in kept if key in written}
    if "headings" in written:
        rest["headings"] = tuple(written["headings"])
    return Result(
        written["bench"], figures_of(written), notes=tuple(written.get("notes", ())), **rest
    )


def _inputs(folder: Path, number: int) -> Path:
    return folder / f"inputs-{number}"


def _prepare(own: Slice, settings: Config, folder: Path) -> Result:
    """Write the inputs of a slice into files that travel."""
    files = own.inputs()
    if not files:
        raise UserError(f"slice {settings.slice} needs neither a dataset nor weights.")
    to = _inputs(folder, settings.slice)
    pack(to, files, int(settings.part_mb * 1e6), made_from={"slice": settings.slice}, before=[])
    parts = sorted(to.glob("*.part"))
    size = sum(part.stat().st_size for part in parts) / 1e6
    note = f"{to}: {len(files)} files, {size:.0f} MB in {len(parts)} parts."
    return Result("gpu-release", {}, notes=(note,))


def _take_inputs(folder: Path, number: int) -> None:
    """Unpack what has travelled, once. Raises UserError where it is damaged."""
    there, to = _inputs(folder, number), came(folder, number)
    if not (there / INDEX).is_file():
        return
    index = read_index(there)
    if (to / INDEX).is_file() and json.loads((to / INDEX).read_text())["id"] == index["id"]:
        return
    with atomic_folder(to, _CAME) as folder_here:
        unpack(there, index, folder_here)
        shutil.copyfile(there / INDEX, folder_here / INDEX)
