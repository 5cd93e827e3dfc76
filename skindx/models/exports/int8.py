"""An ensemble in int8: all layers first, then fewer, until each member answers as it did.

The layers that int8 hurts most go back to fp32, one, then two, then four of them and so on; whether
the rest is still worth it, its speed decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.models.ensemble.ensemble import Member
from skindx.models.exports.gain import measure_gain, refuse_without_gain
from skindx.models.exports.making import write_onnx
from skindx.models.exports.parity import good_enough, refuse
from skindx.models.exports.quantising import Prepared, prepare, quantise
from skindx.models.exports.runtimes import load_body
from skindx.models.exports.sensitivity import rank_layers
from skindx.models.exports.spec import SUFFIX, Gain, Parity, Runtime

Check = Callable[[int, Member], Parity]
"""Number and export of a member: how it answers beside its network."""


def make_int8(
    members: Sequence[Member],
    samples: Callable[[Member], Sequence[NDArray[np.uint8]]],
    check: Check,
    *,
    to: Runtime,
    folder: Path,
    work: Path,
) -> tuple[list[Member], list[Parity], dict[str, tuple[str, ...]], Gain]:
    """Write the members' bodies into `folder`; `work` is for what goes again.

    Returns the members with those bodies, their parity, the layers kept in fp32 by member, and the
    gain. Raises UserError where nothing is gained, and where most of the layers in fp32 do not
    bring a member back to its answers.
    """
    prepared = [_prepared(member, samples(member), work) for member in members]
    files = [folder / f"{member.name}{SUFFIX[to]}" for member in members]
    for one, file in zip(prepared, files, strict=True):
        quantise(one, file, to)
    exported = [_loaded(*pair, to) for pair in zip(members, files, strict=True)]
    name = f"{to} int8"
    # First, since it takes seconds, and keeping layers in fp32 makes nothing faster.
    gain = measure_gain(members, exported, to)
    refuse_without_gain(gain, name)
    parity, kept = [], {}
    for at, member in enumerate(members):
        exported[at], result, layers = _until_good(
            exported[at], prepared[at], files[at], to, partial(check, at)
        )
        parity.append(result)
        if layers:
            kept[member.name] = layers
    if kept:
        gain = measure_gain(members, exported, to)
        refuse_without_gain(gain, name)
    return exported, parity, kept, gain


def _until_good(
    exported: Member,
    prepared: Prepared,
    file: Path,
    to: Runtime,
    check: Callable[[Member], Parity],
) -> tuple[Member, Parity, tuple[str, ...]]:
    result = check(exported)
    if good_enough(result, "int8"):
        return exported, result, ()
    ranked, count = rank_layers(prepared), 1
    while count < len(ranked):
        layers = tuple(ranked[:count])
        quantise(prepared, file, to, layers)
        exported = _loaded(exported, file, to)
        result = check(exported)
        if good_enough(result, "int8"):
            return exported, result, layers
        count *= 2
    refuse(result, "int8")
    raise AssertionError("what is not good enough is refused")


def _prepared(member: Member, samples: Sequence[NDArray[np.uint8]], work: Path) -> Prepared:
    folder = work / member.name
    folder.mkdir()
    graph = folder / "exact.onnx"
    write_onnx(graph, member.classifier, member.preprocess.size)
    return prepare(graph, samples, folder)


def _loaded(member: Member, file: Path, to: Runtime) -> Member:
    return replace(member, exported=load_body(file, to, "int8"))
