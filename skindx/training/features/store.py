"""Features in memory-mapped files of half precision, one a view, shared by all who use the trunk.

A file is named by the hash of what decides its content: weights, architecture, preprocessing, view
and images. What was computed for another trunk is never taken for this one.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from skindx.core.atomic_files import atomic_file, only_writer
from skindx.core.errors import UserError
from skindx.data.manifest import Record
from skindx.models.classifier.preprocess import Preprocess, Views, centre_square, views_of
from skindx.models.classifier.trunk import Trunk
from skindx.models.ensemble.predicting import decoded
from skindx.training.parallel.mesh import Mesh

# N = images, D = dimensions, V = views, B = batch, S = side

Halves = NDArray[np.float16]

_VERSION = 1
"""Raise it when the same trunk gives other features, or the file is laid out otherwise."""
_HEAD = 4096
"""Bytes before the first row: JSON, then spaces."""


@dataclass(frozen=True)
class FeatureFiles:
    """Files of the features of some images by one trunk, and how they are computed."""

    folder: Path
    dataset: Path
    records: Sequence[Record]
    trunk: Trunk
    preprocess: Preprocess
    views: Views

    def open(self, mesh: Mesh, say: Callable[[str], None]) -> list[Halves]:
        """Return the features, V x N x D; every rank calls this.

        What is missing is computed once, each rank a share of the images. Raises UserError for an
        image that is gone or damaged, and for a folder that cannot take the files.
        """
        missing = [view for view in range(self.views) if self._map(view) is None]
        wanted = sorted({view for views in mesh.gather(missing) for view in views})
        if wanted:
            passes = f"{len(self.records)} images" + (f" in {len(wanted)} views" * (self.views > 1))
            say(f"computing the features of {passes} by trunk {self.trunk.key}, once")
            own = self._compute(wanted, mesh)
            parts = mesh.gather(own)
            for view in wanted:
                whole_ND = np.empty((len(self.records), self.trunk.dimensions), np.float16)
                for rank, part in enumerate(parts):
                    whole_ND[rank :: mesh.data.size] = part[view]
                self._write(view, whole_ND)
        found = [self._map(view) for view in range(self.views)]
        assert all(part is not None for part in found)
        return [part for part in found if part is not None]

    def _compute(self, views: Sequence[int], mesh: Mesh) -> dict[int, Halves]:
        """Return this rank's rows of some views."""
        own = self.records[mesh.data.rank :: mesh.data.size]
        classifier = self.trunk.classifier.to(mesh.device)
        rows: dict[int, list[Halves]] = {view: [] for view in views}
        try:
            for squares_BSS3 in self._squares(own):
                seen = views_of(torch.from_numpy(squares_BSS3).to(mesh.device), self.views)
                for view in views:
                    with torch.inference_mode():
                        map_ = classifier.forward_features(seen[view])
                        pooled_BD = classifier.forward_pooled(map_)
                    rows[view].append(self._halved(pooled_BD.float().cpu().numpy()))
        finally:
            classifier.to("cpu")
        empty = np.empty((0, self.trunk.dimensions), np.float16)
        return {view: np.concatenate([empty, *parts]) for view, parts in rows.items()}

    def _squares(self, records: Sequence[Record]) -> Iterator[NDArray[np.uint8]]:
        if records:
            for images in decoded(self.dataset, records):
                yield np.stack([centre_square(image, self.preprocess) for image in images])

    def _halved(self, pooled_BD: NDArray[np.float32]) -> Halves:
        if not np.isfinite(pooled_BD).all() or np.abs(pooled_BD).max(initial=0) > 65000:
            raise UserError(
                f"trunk {self.trunk.key} gives features that are no numbers, or beyond half "
                "precision; its weights are damaged or not of this network: copy them again."
            )
        return pooled_BD.astype(np.float16)

    def _parts(self, view: int) -> dict[str, Any]:
        shas = hashlib.sha256("\n".join(record.sha256 for record in self.records).encode())
        return {
            "skindx": "features",
            "version": _VERSION,
            "trunk": self.trunk.key,
            "preprocess": self.preprocess.model_dump(mode="json"),
            "view": view,
            "images": shas.hexdigest(),
            "shape": [len(self.records), self.trunk.dimensions],
        }

    def _file(self, view: int) -> Path:
        text = json.dumps(self._parts(view), sort_keys=True)
        return self.folder / f"features-{hashlib.sha256(text.encode()).hexdigest()[:16]}.f16"

    def _head(self, view: int) -> bytes:
        return json.dumps(self._parts(view), sort_keys=True).encode().ljust(_HEAD)

    def _map(self, view: int) -> Halves | None:
        """Return a file that is whole and of this trunk; None where there is none.

        Raises UserError for a file of another trunk, other images or another preprocessing.
        """
        file, shape = self._file(view), (len(self.records), self.trunk.dimensions)
        if not file.is_file():
            return None
        with file.open("rb") as opened:
            if os.fstat(opened.fileno()).st_size != _HEAD + 2 * shape[0] * shape[1]:
                return None  # cut off; it is written again
            if opened.read(_HEAD) != self._head(view):
                raise UserError(
                    f"{file} holds features of other weights, images or preprocessing than its "
                    "name says; remove it, and they are computed again."
                )
        return np.memmap(file, np.float16, "r", _HEAD, shape)

    def _write(self, view: int, whole_ND: Halves) -> None:
        file = self._file(view)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = file.with_suffix(".lock")
            lock.touch()
            with only_writer(lock):
                if self._map(view) is not None:  # another rank of this node wrote it
                    return
                with atomic_file(file) as temporary, temporary.open("wb") as out:
                    out.write(self._head(view))
                    out.write(whole_ND.data)
        except OSError as error:
            raise UserError(
                f"the features ({whole_ND.nbytes / 1e6:.3g} MB) cannot be written to "
                f"{file.parent} ({error.strerror or error}); set loader.cache.kind=disk and "
                "loader.cache.folder to another disk."
            ) from None
