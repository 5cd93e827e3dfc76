"""A network's body that skips zeros where that is faster: made from images, loaded from its file.

The file holds choices alone; the weights are the network's own, in the bundle's safetensors.
"""

import hashlib
import logging
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skindx.core.atomic_files import write_json
from skindx.core.errors import UserError
from skindx.core.machine import cache_folder, cpu_count
from skindx.models.classifier.classifier import Classifier
from skindx.models.ensemble.ensemble import Body
from skindx.models.exports.sparse.fusing import FusedBody, fuse
from skindx.models.exports.sparse.measuring import (
    LEAST_ZEROS,
    MANY,
    Thin,
    choose,
    measure_zeros,
    put,
    thinned,
)
from skindx.models.exports.sparse.record import LayerRecord, SparseRecord, fingerprint

log = logging.getLogger(__name__)

MOST_S = 60.0
"""Measuring a network when it is opened ends after so many seconds."""

_NO_ZEROS = (
    "no convolution of it reads zeros of a ReLU (activations such as SiLU and GELU make none), so "
    "there is nothing to skip"
)


def write_sparse(
    file: Path, classifier: Classifier, squares: Sequence[NDArray[np.uint8]], precision: str
) -> None:
    """Write the choices for a network, measured here on central squares S x S x 3 of images."""
    write_json(file, _measured(classifier, squares, precision).model_dump(mode="json"))


def load_sparse(file: Path, classifier: Classifier, size: int, precision: str) -> Body:
    """Return the body by its file, an untrusted one; squares have `size` pixels a side.

    On another machine than the one that measured, this one measures, once: see `_remembered`.
    Raises UserError for a file of another network.
    """
    record = SparseRecord.read(file)
    if record.alone:
        return classifier.forward_features
    body = fuse(classifier)
    able = {name for name, layer in body.layers.items() if layer.skips}
    named = {name for name, layer in record.layers.items() if "sparse" in layer.choices.values()}
    if not (record.layers.keys() <= body.layers.keys() and named <= able):
        raise UserError(f"{file} names convolutions that the network lacks; export it again.")
    asked = {choice for layer in record.layers.values() for choice in layer.choices.values()}
    if "bf16" in asked and precision != "bf16":
        raise UserError(f"{file} has layers in bf16 in an export in fp32; export it again.")
    here = fingerprint()
    if record.machine != here:
        record = _remembered(file, record, here, body, size=size, precision=precision)
    _put_all(body, record)
    return body


def layers_that_skip(file: Path) -> tuple[int, int]:
    """Return how many convolutions skip zeros for one image on one thread, and how many there are.

    Raises UserError.
    """
    record = SparseRecord.read(file)
    choices = [layer.choices.get("one") for layer in record.layers.values()]
    return choices.count("sparse"), len(choices)


def _measured(
    classifier: Classifier, squares: Sequence[NDArray[np.uint8]], precision: str
) -> SparseRecord:
    try:
        body = fuse(classifier)
    except UserError as error:
        return SparseRecord(alone=str(error))
    squares_BSS3 = torch.from_numpy(np.stack(squares))
    zeros = measure_zeros(body, squares_BSS3)
    if max(zeros.values(), default=0.0) < LEAST_ZEROS:
        return SparseRecord(alone=f"{_NO_ZEROS}.")
    _choose_all(body, squares_BSS3, zeros, precision)
    return _record(body, zeros, fingerprint())


def _choose_all(
    body: FusedBody,
    squares_BSS3: Tensor,
    zeros: dict[str, float],
    precision: str,
    thin: Thin = lambda _, input_NCHW: input_NCHW,
    *,
    end: float = math.inf,
) -> None:
    many = squares_BSS3.repeat(-(-MANY // len(squares_BSS3)), 1, 1, 1)[:MANY]
    for threads in sorted({1, cpu_count()}):
        for batch in (squares_BSS3[:1], many):
            choose(body, batch, zeros, precision, threads=threads, thin=thin, end=end)


def _record(body: FusedBody, zeros: dict[str, float], machine: str) -> SparseRecord:
    layers = {
        name: LayerRecord(zeros=zeros.get(name, 0.0), choices=layer.choices, dense=layer.dense)
        for name, layer in body.layers.items()
    }
    return SparseRecord(machine=machine, layers=layers)


def _put_all(body: FusedBody, record: SparseRecord) -> None:
    for name, layer in record.layers.items():
        for setting, choice in layer.choices.items():
            put(body, setting, {name: choice})


def _remembered(
    file: Path,
    record: SparseRecord,
    here: str,
    body: FusedBody,
    *,
    size: int,
    precision: str,
) -> SparseRecord:
    """Return the choices of this machine for a file of another, from the user's cache if there.

    The images are not here: noise takes the place of what reaches a layer, with the layer's share
    of zeros. After `MOST_S` seconds convolutions that were not measured stay dense, in later
    processes too: it would take as long there.
    """
    parts = (file.read_bytes(), here.encode(), str(size).encode(), precision.encode())
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]
    cached = cache_folder() / "runtimes" / f"sparse-{digest}.json"
    with suppress(UserError, OSError):
        known = SparseRecord.read(cached)
        if known.machine == here and known.layers.keys() == body.layers.keys():
            return known
    log.info("%s was measured on another machine: measuring its convolutions here", file.name)
    zeros = {name: layer.zeros for name, layer in record.layers.items()}
    random = torch.Generator().manual_seed(0)
    squares_BSS3 = torch.randint(0, 256, (MANY, size, size, 3), dtype=torch.uint8, generator=random)
    end = time.monotonic() + MOST_S
    _choose_all(body, squares_BSS3, zeros, precision, thinned(zeros), end=end)
    if time.monotonic() >= end:
        log.warning(
            "measuring %s took its limit of %g s: what was not measured is computed densely; to "
            "measure again when the machine has less to do, delete %s",
            *(file.name, MOST_S, cached),
        )
    found = _record(body, zeros, here)
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_json(cached, found.model_dump(mode="json"))
    except OSError as error:
        log.info("the choices are not kept: %s", error)
    return found
