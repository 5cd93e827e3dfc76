"""The ensemble of a bundle with the bodies of one of its exports: a named or the fastest one."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from skindx.core.errors import UserError
from skindx.models.bundle.bundle import Bundle
from skindx.models.ensemble.ensemble import Ensemble
from skindx.models.exports.choosing import answering, fastest, remembered_choice
from skindx.models.exports.runtimes import unsupported, versions, with_export
from skindx.models.exports.spec import (
    EXPORTS,
    RULES,
    Backend,
    ExportCalibration,
    ExportSpec,
    read_exports,
)

log = logging.getLogger(__name__)

EAGER = "eager"


@dataclass(frozen=True)
class Served:
    """An ensemble with the bodies of a backend."""

    ensemble: Ensemble
    name: str = EAGER
    """Of what answers, such as `openvino bf16`."""
    calibration: ExportCalibration | None = None
    """Fitted for its answers; None: the bundle's own rules are."""


def with_temperatures(ensemble: Ensemble, members: Sequence[float], temperature: float) -> Ensemble:
    """Return the ensemble with other temperatures."""
    changed = tuple(
        replace(member, temperature=own)
        for member, own in zip(ensemble.members, members, strict=True)
    )
    return replace(ensemble, members=changed, temperature=temperature)


def with_backend(
    bundle: Bundle, ensemble: Ensemble, backend: Backend, device: str = "cpu"
) -> Served:
    """Return the ensemble with the bodies of `backend`.

    `auto` takes the fastest of the exports that this machine can run and of the eager ensemble; on
    any device but the CPU the ensemble stays eager. Speed is measured once, see choosing.py. Raises
    UserError for a named backend that cannot serve.
    """
    if backend == "eager" or (backend == "auto" and device != "cpu"):
        return Served(ensemble)
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
    found = _fastest(bundle, ensemble, usable, problems, eager=backend == "auto")
    if found is None:
        raise UserError(f"backend {backend!r} cannot serve {bundle.path}: {'; '.join(problems)}")
    chosen, name = found
    fitted = {spec.name: spec.calibration for spec in usable}
    return Served(chosen, name, fitted.get(name))


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
            raise UserError(f"the bundle does not list {spec.file(member.name)}")
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
        raise UserError(f"its temperatures are of {len(fitted.members)} members")
    rules = (getattr(fitted, name) for name in RULES)
    columns = [column for rule in rules if rule for column in rule.urgent_columns]
    if max(columns, default=-1) >= len(bundle.taxonomy.classes):
        raise UserError(f"its rules name class {max(columns)}, beyond the last")
    return with_temperatures(served, fitted.members, fitted.temperature)
