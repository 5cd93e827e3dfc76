"""The ensemble of a bundle by a backend: a named one, or the fastest here, measured once."""

import hashlib
import json
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from skindx.core.atomic_files import only_writer, write_json
from skindx.core.errors import UserError
from skindx.core.machine import cache_folder, cpu_flags, processor_facts
from skindx.core.measurement import interleave, torch_threads
from skindx.models.bundle.bundle import Bundle
from skindx.models.bundle.bundle_index import EXPORTS
from skindx.models.ensemble import Ensemble
from skindx.models.exports.runtimes import (
    BACKENDS,
    Backend,
    ExportCalibration,
    ExportSpec,
    read_exports,
    unsupported,
    versions,
    with_export,
)
from skindx.models.metadata_head import RULES

log = logging.getLogger(__name__)

_ROUNDS, _WARMUP = 7, 2
_WAIT_S = 120.0
"""Seconds to wait for another process that measures; after them this one measures itself."""


def fastest(candidates: Mapping[str, Callable[[], object]]) -> str:
    """Return the name of the candidate that takes the least processor time on one thread."""
    seconds = processor_seconds(candidates)
    return min(candidates, key=lambda name: statistics.median(seconds[name]))


def processor_seconds(
    candidates: Mapping[str, Callable[[], object]], rounds: int = _ROUNDS
) -> dict[str, list[float]]:
    """Return the processor seconds of each candidate on one thread, one of each round.

    Candidates take turns, so that a busy machine counts alike for all.
    """
    with torch_threads(1):
        return interleave(candidates, rounds, _WARMUP, time.process_time)


def answering(ensemble: Ensemble) -> Callable[[], object]:
    """Return a call in which every member answers one random image."""
    random = np.random.default_rng(0)
    squares = [
        random.integers(0, 256, (1, size, size, 3), dtype=np.uint8)
        for size in (member.preprocess.size for member in ensemble.members)
    ]

    def answer() -> None:
        for member, square_1SS3 in zip(ensemble.members, squares, strict=True):
            member.log_probabilities_of_squares([square_1SS3])

    return answer


@contextmanager
def remembered_choice(parts: Mapping[str, object]) -> Iterator["RememberedChoice"]:
    """Yield the choice of an earlier process for the same bundle, runtimes and processor.

    One process at a time measures: the others wait and then read its choice.
    """
    parts = {**parts, "cpu": [*processor_facts(), sorted(cpu_flags())]}
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    file = cache_folder() / "runtimes" / f"{digest[:32]}.json"
    choice = RememberedChoice(file)
    with ExitStack() as stack:
        if choice.name is None:
            # With a cache that cannot be written each process measures for itself.
            with suppress(OSError, UserError):
                file.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(only_writer(file.parent, "measurement of runtimes", _WAIT_S))
                choice.read()
        yield choice


class RememberedChoice:
    """A remembered choice; `name` is None until one is known."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.name: str | None = None
        self.read()

    def read(self) -> None:
        """Read what is remembered; a damaged file counts as nothing."""
        self.name = None
        with suppress(OSError, ValueError, KeyError, TypeError):
            name = json.loads(self._file.read_text(encoding="utf-8"))["fastest"]
            self.name = name if isinstance(name, str) else None

    def remember(self, name: str) -> None:
        """Keep a choice for the next process; without a cache it is measured again."""
        self.name = name
        try:
            write_json(self._file, {"fastest": name})
        except OSError as error:
            log.info("the choice of a runtime is not kept: %s", error)


EAGER = "eager"


@dataclass(frozen=True)
class ServedEnsemble:
    """An ensemble with the bodies of a backend."""

    ensemble: Ensemble
    name: str = EAGER
    """Name of the backend that answers, such as `openvino bf16`."""
    calibration: ExportCalibration | None = None
    """The calibration fitted for this backend; None: the bundle's own rules apply."""


def with_temperatures(ensemble: Ensemble, members: Sequence[float], temperature: float) -> Ensemble:
    changed = tuple(
        replace(member, temperature=value)
        for member, value in zip(ensemble.members, members, strict=True)
    )
    return replace(ensemble, members=changed, temperature=temperature)


def with_backend(
    bundle: Bundle, ensemble: Ensemble, backend: Backend, device: str = "cpu"
) -> ServedEnsemble:
    """Return the ensemble with the bodies of `backend`.

    `auto` takes the fastest of the exports that this machine can run and of the eager ensemble; on
    any device but the CPU the ensemble stays eager. Speed is measured once and remembered. Raises
    UserError for a named backend that cannot serve.
    """
    if backend not in (known := ("auto", "eager", *BACKENDS.names)):
        raise UserError(f"there is no backend {backend!r}; choose one of {', '.join(known)}.")
    if backend == "eager" or (backend == "auto" and device != "cpu"):
        return ServedEnsemble(ensemble)
    wanted = [
        spec
        for spec in read_exports(bundle.path, bundle.spec.files)
        if backend in ("auto", spec.to)
    ]
    problems = []
    if device != "cpu":
        problems = [f"exports run on the CPU, not on {device}"]
        wanted = []
    elif not wanted:
        problems = [f"the bundle has no such export; run `skindx export {bundle.path}` first"]
    usable = []
    for spec in wanted:
        if why := unsupported(spec.to, spec.precision):
            problems.append(why)
        else:
            usable.append(spec)
    fastest_one = _fastest(bundle, ensemble, usable, problems, eager=backend == "auto")
    if fastest_one is None:
        raise UserError(
            f"backend {backend!r} cannot run {bundle.path} ({'; '.join(problems)}); remove "
            "--backend, or make this export with `skindx export`."
        )
    chosen, name = fastest_one
    fitted = {spec.name: spec.calibration for spec in usable}
    return ServedEnsemble(chosen, name, fitted.get(name))


def _fastest(
    bundle: Bundle,
    ensemble: Ensemble,
    specs: Sequence[ExportSpec],
    problems: list[str],
    *,
    eager: bool,
) -> tuple[Ensemble, str] | None:
    """Return the fastest of the exports that load, and of the eager ensemble if it may answer.

    Adds a sentence to `problems` for each export that does not load; None when nothing is left.
    """
    by_name = {spec.name: spec for spec in specs}
    names = sorted(by_name) + ([EAGER] if eager else [])
    if len(names) < 2:  # nothing to measure
        return _only(bundle, ensemble, specs, problems, eager=eager)
    with remembered_choice(
        {"names": names, "versions": _versions(specs), **_made(bundle)}
    ) as choice:
        if choice.name in by_name:
            loaded = _loaded(bundle, ensemble, [by_name[choice.name]], problems)
            if loaded:
                return loaded[choice.name], choice.name
        elif choice.name == EAGER and eager:
            return ensemble, EAGER
        candidates = _loaded(bundle, ensemble, specs, problems)
        if eager:
            candidates[EAGER] = ensemble
        if not candidates:
            return None
        if len(candidates) == 1:
            (name,) = candidates
        else:
            name = fastest({key: answering(candidate) for key, candidate in candidates.items()})
            choice.remember(name)
        return candidates[name], name


def _only(
    bundle: Bundle,
    ensemble: Ensemble,
    specs: Sequence[ExportSpec],
    problems: list[str],
    *,
    eager: bool,
) -> tuple[Ensemble, str] | None:
    if eager:
        return ensemble, EAGER
    return next(
        ((one, name) for name, one in _loaded(bundle, ensemble, specs, problems).items()), None
    )


def _loaded(
    bundle: Bundle, ensemble: Ensemble, specs: Sequence[ExportSpec], problems: list[str]
) -> dict[str, Ensemble]:
    loaded = {}
    for spec in specs:
        try:
            loaded[spec.name] = _attached(bundle, ensemble, spec)
        # The runtimes have exceptions of their own for a file of a later version than theirs.
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            why = f"{spec.name} cannot be loaded ({reason})"
            log.warning("%s: %s", bundle.path.name, why)
            problems.append(why)
    return loaded


def _versions(specs: Sequence[ExportSpec]) -> dict[str, dict[str, str]]:
    return {spec.to: versions(spec.to) for spec in specs}


def _made(bundle: Bundle) -> dict[str, object]:
    """Return what decides how long a bundle's networks take: the files of members and exports."""
    folders = ("members/", f"{EXPORTS}/")
    files = {name: hash_ for name, hash_ in bundle.spec.files.items() if name.startswith(folders)}
    return {"files": files}


def _attached(bundle: Bundle, ensemble: Ensemble, spec: ExportSpec) -> Ensemble:
    members = []
    for member in ensemble.members:
        file = bundle.path / spec.file(member.name)
        if spec.file(member.name) not in bundle.spec.files:
            raise UserError(
                f"the index of the bundle does not list the file {spec.file(member.name)}"
            )
        exported = with_export(member, file, spec.to, spec.precision)
        # A graph whose map does not fit the network's head shows it here, not in a diagnosis.
        side = member.preprocess.size
        exported.log_probabilities([np.zeros((side, side, 3), dtype=np.uint8)])
        members.append(exported)
    served = replace(ensemble, members=tuple(members))
    fitted = spec.calibration
    if fitted is None:
        return served
    if len(fitted.members) != len(members):
        raise UserError(
            f"the export was calibrated for {len(fitted.members)} members, and the bundle has "
            "another number of members"
        )
    rules = (getattr(fitted, name) for name in RULES)
    columns = [column for rule in rules if rule for column in rule.urgent_columns]
    if max(columns, default=-1) >= len(bundle.taxonomy.classes):
        raise UserError(
            f"the export has rules for class {max(columns)}, which the bundle does not have"
        )
    return with_temperatures(served, fitted.members, fitted.temperature)
