"""One rank: trains every member of a run, and its detector, that is not finished yet.

`rank.py` is where its process begins, started by DeepSpeed's launcher; RUN/train.yaml holds the
settings.
"""

import os
import sys
import traceback
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from skindx.data.manifest import read_manifest
from skindx.errors import UserError
from skindx.files import only_writer
from skindx.system import go_offline
from skindx.taxonomy import Taxonomy
from skindx.training.callbacks.callback_list import watching
from skindx.training.checkpoint.keeper import CANNOT_WRITE, CHECKPOINTS, checkpoint_folder
from skindx.training.checkpoint.resume import Resuming
from skindx.training.checkpoint.store import remove_all, saved_in
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.joining import is_lost, join, leave
from skindx.training.feeding.folds import partition
from skindx.training.feeding.reading import TrainingData
from skindx.training.finished.member import FinishedMember, fingerprint, is_finished, save_member
from skindx.training.finished.snapshots import snapshot_keeper
from skindx.training.launching.notes import RANKS, write_note
from skindx.training.launching.stopping import StoppedError, StopRequest, end_with_parent
from skindx.training.loop import train_member
from skindx.training.parallel.mesh import Cluster
from skindx.training.tasks.detector import job as detection

SETTINGS = "train.yaml"


def train(
    run: Path, dataset: Path, settings: TrainSettings, cluster: Cluster, stop: StopRequest
) -> None:
    """Train what is missing, from the last checkpoint on. Raises StoppedError when asked to."""
    records = read_manifest(dataset)
    classes = Taxonomy.load(dataset / "taxonomy.yaml").keys
    with ExitStack() as held:
        cluster.from_first(lambda: _hold(run, settings.checkpoint.grace_s, held))
        for member in settings.members:
            mark = fingerprint(settings, member, dataset)
            # One rank looks: on another node a member's folder may show up later.
            if cluster.from_first(partial(is_finished, run, member.name, mark)):
                continue
            if any(cluster.gather(stop.asked)):
                raise StoppedError(f"{member.name} was not begun")
            data = TrainingData(dataset, *partition(records, member.fold, settings.folds), classes)
            saving = Resuming(checkpoint_folder(run, member.name), mark, settings.checkpoint, stop)
            epochs = settings.recipe_of(member).epochs
            keep = snapshot_keeper(run, member, epochs, cluster)
            with watching(run, settings, member, len(data.train), shown=cluster.first) as progress:
                finished, history = train_member(
                    settings, member, data, cluster, progress, after_epoch=keep, saving=saving
                )
            cluster.from_first(partial(_save, run, member.name, finished, history, mark))
        detection.work(run, dataset, settings, cluster, stop)


def _hold(run: Path, wait_s: float, held: ExitStack) -> None:
    """Let no second training write into the same checkpoints; ranks of a killed one may linger."""
    folder = run / CHECKPOINTS
    folder.mkdir(parents=True, exist_ok=True)
    held.enter_context(only_writer(folder, "training", wait_s))


def _save(
    run: Path, name: str, finished: FinishedMember, history: list[dict[str, object]], mark: str
) -> None:
    """Write the finished member; only then do its checkpoints go."""
    try:
        save_member(run, name, finished, history, mark)
    except CANNOT_WRITE as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"member {name} is trained, but {run} cannot be written ({reason}); make room on the "
            f"disk and run the same command again: {_then(checkpoint_folder(run, name))}."
        ) from None
    remove_all(checkpoint_folder(run, name))


def _then(checkpoints: Path) -> str:
    """Say what the same command does after a member could not be written."""
    if saved_in(checkpoints):
        return "it goes on from the last checkpoint"
    return "no checkpoint could be written either, so the member is trained anew"


def main(arguments: list[str]) -> int:
    """Run one rank; return the exit code."""
    end_with_parent()
    run, dataset = (Path(argument) for argument in arguments)
    notes = run / RANKS
    note = partial(write_note, notes)
    settings = TrainSettings.load(run / SETTINGS)
    with StopRequest(settings.checkpoint.grace_s, notes) as stop:
        note("at work")
        go_offline()
        try:
            cluster = join(settings.engine)
            train(run, dataset, settings, cluster, stop)
            leave()
        except StoppedError as stopped:
            note("stopped", str(stopped))
            leave()
        except UserError as error:
            note("refused")
            print(f"error: {error}", file=sys.stderr)
            return 2
        except Exception as error:
            rank = os.environ.get("RANK", "0")
            if is_lost(error):
                # The rank that is gone is what matters, not how each of the others noticed.
                note("left")
                print(f"rank {rank} lost another rank and ends", file=sys.stderr)
                return 1
            note("failed")
            print(f"rank {rank} failed:", file=sys.stderr)
            traceback.print_exc()
            return 1
        else:
            note("finished")
    return 0
