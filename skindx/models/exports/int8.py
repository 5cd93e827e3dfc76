"""An ensemble in int8: all layers first, then fewer, until each member answers as it did.

The layers that int8 hurts most go back to fp32, one, then two, then four of them and so on; whether
the rest is still worth it, its speed decides.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.models.ensemble import Member
from skindx.models.exports.export_record import Gain, Parity
from skindx.models.exports.fidelity import good_enough, measure_gain, refuse, refuse_without_gain
from skindx.models.exports.onnx_backend import prepare, write_onnx
from skindx.models.exports.runtimes import Prepared, Runtime, backend_of, load_body, quantise

_IMAGES = 8


def rank_layers(prepared: Prepared) -> list[str]:
    """Return the layers of a graph, the one that changes the last map most first.

    The change is ||map of one layer in int8 - map||² / ||map||² over some of the samples. ONNX
    Runtime measures it, also for other runtimes: the rounding is the layer's own.
    """
    squares_BSS3 = torch.from_numpy(np.stack(prepared.samples[:_IMAGES]))
    with tempfile.TemporaryDirectory(dir=prepared.graph.parent) as folder:
        file = Path(folder) / "one.onnx"
        exact = _map(prepared.graph, squares_BSS3)
        errors = {}
        for layer in prepared.layers:
            quantise(prepared, file, "onnx", [other for other in prepared.layers if other != layer])
            errors[layer] = float(((_map(file, squares_BSS3) - exact) ** 2).sum())
    # An error that is no number is the worst.
    return sorted(errors, key=lambda layer: -np.nan_to_num(errors[layer], nan=np.inf))


def _map(file: Path, squares_BSS3: torch.Tensor) -> NDArray[np.float64]:
    return load_body(file, "onnx", "fp32")(squares_BSS3).double().numpy()


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
    files = [folder / f"{member.name}{backend_of(to).suffix}" for member in members]
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
    exported: Member, prepared: Prepared, file: Path, to: Runtime, check: Callable[[Member], Parity]
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
