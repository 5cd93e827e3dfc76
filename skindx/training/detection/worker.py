"""One rank's part in a run's detector.

`python -m skindx.training.detection.worker RUN DATASET` trains it alone, without the members.
"""

import sys
from pathlib import Path

from skindx.data.boxes.exporting import box_labels
from skindx.data.manifest import Record, read_manifest, split_of
from skindx.errors import UserError
from skindx.offline import go_offline
from skindx.training.bar import TrainingBar
from skindx.training.batches import steps_of
from skindx.training.detection.network import build_network
from skindx.training.detection.pictures import looked_at
from skindx.training.detection.store import (
    detector_fingerprint,
    is_trained,
    load_parts,
    save_parts,
)
from skindx.training.detection.trainer import train_detector
from skindx.training.engine import Cluster, join, leave, resolve_ranks
from skindx.training.settings import TrainSettings

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


def work(run: Path, dataset: Path, settings: TrainSettings, cluster: Cluster) -> None:
    """Train the run's detector if it is not there; every rank calls this."""
    if is_trained(run, settings, dataset):
        return
    assert settings.detector is not None
    cluster.barrier()  # nobody may save the detector while another rank still looks for it
    records = read_manifest(dataset)
    steps = settings.detector.epochs * steps_of(
        len(looked_at(records, "train")), settings.detector.batch
    )
    with TrainingBar("detector", steps, shown=cluster.first) as bar:
        parts, history = train_detector(settings, dataset, records, cluster, bar)
    if cluster.first:
        save_parts(run, dataset, parts, history, detector_fingerprint(settings, dataset))


def main(arguments: list[str]) -> int:
    """Run one rank of a detector's training; return the exit code."""
    go_offline()
    run, dataset = (Path(argument) for argument in arguments)
    settings = TrainSettings.load(run / SETTINGS)
    try:
        cluster = join(settings.engine)
        work(run, dataset, settings, cluster)
        leave()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
