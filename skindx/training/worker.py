"""One rank: trains every member of a run that is not finished yet.

`python -m skindx.training.worker RUN DATASET`, started by DeepSpeed's launcher or by `torchrun`;
RUN/train.yaml holds the settings.
"""

import sys
import traceback
from pathlib import Path

from skindx.data.manifest import read_manifest, split_of
from skindx.errors import UserError
from skindx.offline import go_offline
from skindx.taxonomy import Taxonomy
from skindx.training.engine import Cluster, join, leave
from skindx.training.member import fingerprint, is_finished, save_member
from skindx.training.monitors.watching import watching
from skindx.training.reading import TrainingData
from skindx.training.settings import TrainSettings
from skindx.training.trainer import train_member

SETTINGS = "train.yaml"


def train(run: Path, dataset: Path, settings: TrainSettings, cluster: Cluster) -> None:
    """Train what is missing."""
    records = read_manifest(dataset)
    data = TrainingData(
        dataset,
        split_of(records, "train"),
        split_of(records, "val"),
        Taxonomy.load(dataset / "taxonomy.yaml").keys,
    )
    for member in settings.members:
        mark = fingerprint(settings, member, dataset)
        if is_finished(run, member.name, mark):
            continue
        cluster.barrier()  # nobody may save a member while another rank still looks for it
        with watching(run, settings, member, len(data.train), shown=cluster.first) as progress:
            finished, history = train_member(settings, member, data, cluster, progress)
        if cluster.first:
            save_member(run, member.name, finished, history, mark)


def main(arguments: list[str]) -> int:
    """Run one rank; return the exit code."""
    go_offline()
    run, dataset = (Path(argument) for argument in arguments)
    settings = TrainSettings.load(run / SETTINGS)
    try:
        cluster = join(settings.engine)
        train(run, dataset, settings, cluster)
        leave()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Exception:
        # Which rank it was matters more than anything else when ranks fail one after another.
        import os

        print(f"rank {os.environ.get('RANK', '0')} failed:", file=sys.stderr)
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
