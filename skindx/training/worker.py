"""One rank: trains every member of a run that is not finished yet.

`python -m skindx.training.worker RUN DATASET`, started by DeepSpeed's launcher or by `torchrun`;
RUN/train.yaml holds the settings.
"""

import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from skindx.data.manifest import Record, read_manifest
from skindx.errors import UserError
from skindx.offline import go_offline
from skindx.taxonomy import Taxonomy
from skindx.training.batches import global_batches
from skindx.training.engine import Cluster, join, leave
from skindx.training.member import fingerprint, is_finished, save_member
from skindx.training.settings import TrainSettings
from skindx.training.trainer import TrainingData, train_member

SETTINGS = "train.yaml"


class MemberBar:
    """A progress bar on the first rank: loss, pictures a second, time left."""

    def __init__(self, name: str, steps: int, first: bool) -> None:
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not first,
            transient=True,
        )
        self._task = self._bar.add_task(name, total=steps, loss=float("nan"))
        self._name, self._first = name, first

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def step(self, loss: float) -> None:
        """One step is done."""
        self._bar.update(self._task, advance=1, loss=loss)

    def epoch(self, row: dict[str, Any]) -> None:
        """Print the epoch's row above the bar."""
        if self._first:
            self._bar.console.print(
                f"{self._name}  epoch {row['epoch']:>3}  loss {row['loss']:.3f}  "
                f"val top-1 {row['val_top1']:.3f}  balanced {row['val_balanced']:.3f}  "
                f"{row['pictures_per_s']:.0f} pictures/s",
                highlight=False,
                soft_wrap=True,
            )


def split_of(records: list[Record], name: str) -> list[Record]:
    """Return the records of one split, in manifest order."""
    return [record for record in records if record.split == name]


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
        recipe = settings.recipe_of(member)
        steps = recipe.epochs * len(global_batches(len(data.train), recipe.batch, 0, 0))
        with MemberBar(member.name, steps, cluster.first) as bar:
            finished, history = train_member(settings, member, data, cluster, bar)
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
