"""What a worker does before its first case: load the bundle, for one thread."""

import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from skindx.errors import UserError
from skindx.offline import go_offline
from skindx.ui.pool.worker import Answerer, work


def worker_command(bundle: Path, version: str, miss_rate: float | None = None) -> tuple[str, ...]:
    """Return what starts a worker; `process.started` adds a connection and a folder."""
    level = "" if miss_rate is None else str(miss_rate)
    return (sys.executable, "-m", "skindx.ui.pool", str(bundle.resolve()), version, level)


def load_bundle(bundle: Path, version: str, miss_rate: float | None = None) -> Answerer:
    """Return what answers cases by a bundle.

    Raises UserError for one that is not whole, that is no longer of this `version`, or that has no
    threshold for the miss rate.
    """
    import cv2
    import torch

    # One photo is too little work to share: two threads wait for each other at barriers, many
    # times as long when anything else runs on the machine. Several workers use several cores.
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    from skindx.diagnosis.diagnose import answer_many, bundle_version
    from skindx.diagnosis.predictor import Predictor

    predictor = Predictor.load(bundle, miss_rate=miss_rate)
    if bundle_version(predictor.bundle) != version:
        raise UserError(
            f"bundle {bundle} was replaced while it was served; start `skindx serve` again."
        )
    return partial(answer_many, predictor)


def main(arguments: Sequence[str]) -> None:
    """Run a worker: BUNDLE VERSION MISS_RATE DESCRIPTOR FOLDER; no miss rate is an empty word."""
    go_offline()
    bundle, version, level, descriptor, folder = arguments
    miss_rate = float(level) if level else None
    with socket.socket(fileno=int(descriptor)) as connection:
        work(connection, Path(folder), partial(load_bundle, Path(bundle), version, miss_rate))
