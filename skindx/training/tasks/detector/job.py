"""One rank's part in a run's detector.

`python -m skindx.training.tasks.detector.job RUN DATASET` trains it alone, without the members.
"""

import sys
from functools import partial
from pathlib import Path

from skindx.data.boxes.exporting import box_labels
from skindx.data.manifest import Record, read_manifest, split_of
from skindx.errors import UserError
from skindx.system import go_offline
from skindx.training.callbacks.bar import TrainingBar
from skindx.training.checkpoint.keeper import checkpoint_folder
from skindx.training.checkpoint.resume import Resuming
from skindx.training.checkpoint.store import remove_all
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.joining import join, leave
from skindx.training.feeding.batches import steps_of
from skindx.training.finished.detector import (
    CHECKPOINT,
    detector_fingerprint,
    is_trained,
    load_parts,
    save_parts,
)
from skindx.training.launching.stopping import StoppedError, StopRequest
from skindx.training.parallel.mesh import Cluster, resolve_ranks
from skindx.training.tasks.detector.images import looked_at
from skindx.training.tasks.detector.network import build_network
from skindx.training.tasks.detector.task import train_detector

SETTINGS = "train.yaml"


def check_detector(settings: TrainSettings, records: list[Record]) -> None:
    """Raise UserError for a detector that does not fit the dataset, the machine or ultralytics."""
    detector = settings.detector
    if detector is None:
        return
    if detector.from_run:
        load_parts(detector.from_run)
        return
    labels = box_labels(split_of(records, "train"))
    if not labels:
        raise UserError(
            "a detector was asked for, but no training picture has a box; "
            "build the dataset with boxes, or set detector=null."
        )
    build_network(detector.model, len(labels))
    looked, ranks = len(looked_at(records, "train")), resolve_ranks(settings.engine)
    if min(detector.batch, looked) < ranks:
        raise UserError(
            f"detector.batch={detector.batch} and the {looked} training pictures in which somebody "
            f"looked for boxes must give each of the {ranks} ranks one picture a step."
        )


def work(
    run: Path, dataset: Path, settings: TrainSettings, cluster: Cluster, stop: StopRequest
) -> None:
    """Train the run's detector if it is not there; every rank calls this.

    Goes on from its last checkpoint. Raises StoppedError when asked to stop.
    """
    # One rank looks: on another node the folder may show up later.
    if cluster.from_first(partial(is_trained, run, settings, dataset)):
        return
    assert settings.detector is not None
    if any(cluster.gather(stop.asked)):
        raise StoppedError("the detector was not begun")
    mark, folder = detector_fingerprint(settings, dataset), checkpoint_folder(run, CHECKPOINT)
    records = read_manifest(dataset)
    pictures, batch = len(looked_at(records, "train")), settings.detector.batch
    steps = settings.detector.epochs * steps_of(pictures, batch)
    saving = Resuming(folder, mark, settings.checkpoint, stop)
    with TrainingBar("detector", steps, shown=cluster.first, batch=min(batch, pictures)) as bar:
        parts, history = train_detector(settings, dataset, records, cluster, bar, saving=saving)

    def save() -> None:
        save_parts(run, dataset, parts, history, mark)
        remove_all(folder)

    cluster.from_first(save)


def main(arguments: list[str]) -> int:
    """Run one rank of a detector's training; return the exit code."""
    go_offline()
    run, dataset = (Path(argument) for argument in arguments)
    settings = TrainSettings.load(run / SETTINGS)
    with StopRequest(settings.checkpoint.grace_s) as stop:
        try:
            cluster = join(settings.engine)
            work(run, dataset, settings, cluster, stop)
            leave()
        except StoppedError as stopped:
            print(stopped, file=sys.stderr)
            leave()
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
