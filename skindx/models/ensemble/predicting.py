"""Predictions of members or an ensemble for many stored images, streamed in their order."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from skindx.core.machine import cpu_count
from skindx.data.loader.ahead import work_ahead
from skindx.data.loader.source import Files
from skindx.data.manifest import Record
from skindx.models.ensemble.ensemble import Ensemble, EnsembleOutput, Member, Memo

# M = members, N = images, C = classes

_BATCH = 32


def predict_members(
    members: Sequence[Member], dataset: Path, records: Sequence[Record]
) -> NDArray[np.float64]:
    """Return uncalibrated log-probabilities M x N x C, on the device where each member lies.

    Each image is decoded once for all members, and only a batch of them is in memory. Raises
    UserError for an image that is gone or damaged.
    """
    parts = []
    for batch in decoded(dataset, records):
        memo: Memo = {}
        parts.append(np.stack([member.log_probabilities(batch, memo=memo) for member in members]))
    return np.concatenate(parts, axis=1)


def predict_records(
    ensemble: Ensemble, dataset: Path, records: Sequence[Record]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ensemble's probabilities N x C and each member's M x N x C, as it serves them.

    Raises UserError for an image that is gone or damaged.
    """
    parts = [ensemble.probabilities(batch) for batch in decoded(dataset, records)]
    whole, members = zip(*parts, strict=True)
    return np.concatenate(whole), np.concatenate(members, axis=1)


def outputs_of_records(
    ensemble: Ensemble, dataset: Path, records: Sequence[Record]
) -> Iterator[tuple[Sequence[Record], list[NDArray[np.uint8]], EnsembleOutput]]:
    """Yield batches of records, their images, and the outputs of the ensemble.

    Raises UserError for an image that is gone or damaged.
    """
    first = 0
    for images in decoded(dataset, records):
        batch = records[first : first + len(images)]
        first += len(images)
        yield batch, images, ensemble.predict_with_features(images)


def decoded(dataset: Path, records: Sequence[Record]) -> Iterator[list[NDArray[np.uint8]]]:
    """Yield batches of decoded images, H x W x 3 each, in the order of the records."""
    files = Files(dataset, records)
    reading = work_ahead(files.image, range(len(records)), threads=cpu_count(), ahead=_BATCH)
    # Of nearly equal size: batch-norm statistics must not rest on a remainder of one image.
    batches = np.array_split(np.arange(len(records)), -(-len(records) // _BATCH))
    with closing(reading) as images:
        for batch in batches:
            yield list(islice(images, len(batch)))
