"""Start of a worker: load the bundle, for one thread."""

import socket
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from skindx.core.errors import UserError
from skindx.core.machine import go_offline
from skindx.core.startup import collect_rarely
from skindx.ui.faults import hide_messages
from skindx.ui.pool.worker import Answerer, serve_cases
from skindx.workers.process import module_command


def worker_command(
    bundle: Path,
    version: str,
    expect: str | None = None,
    miss_rate: float | None = None,
    prevalence: Path | None = None,
) -> tuple[str, ...]:
    """Return what starts a worker; `worker.started` adds a connection and a folder."""
    level = "" if miss_rate is None else str(miss_rate)
    mix = "" if prevalence is None else str(prevalence.resolve())
    words = (str(bundle.resolve()), version, expect or "", level, mix)
    return module_command("skindx.ui.pool", *words)


def load_bundle(
    bundle: Path,
    version: str,
    expect: str | None = None,
    miss_rate: float | None = None,
    prevalence: Path | None = None,
) -> Answerer:
    """Return what answers cases by a bundle.

    Raises UserError for one that is not whole, one that is no longer of this `version`, one that
    does not have the digest which is expected, one without a threshold for the miss rate, and one
    that the file of the prevalence does not fit.
    """
    import cv2
    import torch

    # One photo is too little work to share: two threads wait for each other at barriers, many
    # times as long when anything else runs on the machine. Several workers use several cores.
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    from skindx.diagnosis.diagnose import answer_many, bundle_version
    from skindx.diagnosis.predictor import Predictor

    predictor = Predictor.load(bundle, expect=expect, miss_rate=miss_rate, prevalence=prevalence)
    if bundle_version(predictor.bundle) != version:
        raise UserError(
            f"bundle {bundle} was replaced while it was served; start `skindx serve` again."
        )
    return partial(answer_many, predictor)


def main(arguments: Sequence[str]) -> None:
    """Run a worker: BUNDLE VERSION EXPECT MISS_RATE PREVALENCE DESCRIPTOR FOLDER; "": not given."""
    go_offline()
    collect_rarely()
    hide_messages()
    bundle, version, expect, level, mix, descriptor, folder = arguments
    miss_rate = float(level) if level else None
    with socket.socket(fileno=int(descriptor)) as connection:
        prevalence = Path(mix) if mix else None
        load = partial(load_bundle, Path(bundle), version, expect or None, miss_rate, prevalence)
        serve_cases(connection, Path(folder), load)
