"""A training run from dataset to bundle: check everything, start the ranks, calibrate, pack.

One that is refused leaves its folder as it was.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from skindx.core.atomic_files import only_writer
from skindx.core.errors import JobError, UserError
from skindx.data.layout import RECIPE
from skindx.data.loader.batches import learning
from skindx.data.manifest import check_sample, read_manifest
from skindx.models.bundle.bundle import BUNDLE, Bundle
from skindx.taxonomy import Taxonomy
from skindx.taxonomy.label_matches import check_urgencies
from skindx.training.checkpoint.fingerprints import fingerprint
from skindx.training.checkpoint.finished import is_finished, is_trained
from skindx.training.checks import check
from skindx.training.config.engine import CHECKPOINTS, SETTINGS
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.ranks import join, launch
from skindx.training.ensembles.member_refs import (
    is_there,
    member_refs,
    refuse_reaching_out,
)
from skindx.training.ensembles.pack import pack_run
from skindx.training.jobs import train as train_members
from skindx.training.launching.place import settle_place
from skindx.training.launching.supervise import RANKS, StoppedError, StopRequest, end_with_parent
from skindx.training.method import nobody_at_work
from skindx.training.parallel.mesh import is_lost, leave, resolve_accelerator
from skindx.training.registry import PLANNED, resolve, run_method

_WRITTEN_FIRST = (SETTINGS, PLANNED)
"""What a training writes before its ranks look at weights, images and checkpoints."""


@contextmanager
def only_training(run: Path) -> Iterator[bool]:
    """Hold a run's folder against every other training; a kill sets it free.

    Yields whether the folder was there before; one that was not and stays empty goes again. Of the
    ranks that another launcher started the first one holds it for all. Raises UserError while
    another training is at work.
    """
    there = run.exists()
    if os.environ.get("RANK", "0") != "0":
        yield there
        return
    run.mkdir(parents=True, exist_ok=True)
    try:
        with only_writer(run, "training", 0):
            yield there
    finally:
        if not there:
            with suppress(OSError):
                run.rmdir()


@contextmanager
def put_back_if_refused(run: Path, *, there: bool) -> Iterator[None]:
    """Undo what a training has written that is refused before it has made anything.

    A folder that was not `there` goes; settings that were there come back. Checkpoints and finished
    members are never touched, nor a run that another training is at work in.
    """
    before = {name: _bytes(run / name) for name in _WRITTEN_FIRST}
    made = _made(run)
    try:
        yield
    except UserError:
        if _made(run) == made and _is_free(run):
            for name, content in before.items():
                _put_back(run / name, content)
            if not there:
                shutil.rmtree(run, ignore_errors=True)
        raise


def _bytes(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def _put_back(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink(missing_ok=True)
    elif _bytes(file) != content:
        file.write_bytes(content)


def _made(run: Path) -> set[Path]:
    """Return all files of a run but those that are written first and those beside its ranks."""
    first = {run / name for name in _WRITTEN_FIRST}
    ranks = run / "ranks"
    return {
        file
        for file in run.rglob("*")
        if file.is_file() and file not in first and ranks not in file.parents
    }


def _is_free(run: Path) -> bool:
    """Tell whether no other training holds the run's checkpoints."""
    folder = run / CHECKPOINTS
    if not folder.is_dir():
        return True
    try:
        with only_writer(folder, "training", 0):
            return True
    except UserError:
        return False


def train(
    dataset: Path,
    settings: TrainSettings,
    run: Path,
    begin: Callable[[], None] = lambda: None,
) -> Bundle | None:
    """Train what is missing of a run and pack RUN/bundle.

    Starts the ranks itself with DeepSpeed's launcher; a process that torchrun, srun or another
    launcher started (RANK or SLURM_PROCID is set) is one of the ranks instead, and only the first
    packs; the others return None. Raises UserError, before anything is written, for whatever can be
    known to fail, and StoppedError when SIGTERM ended it; the same call goes on from there. `begin`
    is called when all is checked and nothing is written yet.
    """
    settle_place()
    records = read_manifest(dataset)
    taxonomy = Taxonomy.load(dataset / "taxonomy.yaml")
    check_urgencies(
        taxonomy,
        f"build the dataset again with `skindx build {dataset / RECIPE} --out {dataset}`, which "
        "keeps its splits, and give --urgency CLASS=urgent|soon|routine where it asks for it",
    )
    settings = resolve(settings)
    check(settings, records, taxonomy, run)
    check_sample(dataset, learning(records))
    missing = unfinished(run, dataset, settings)
    BUNDLE.check(run / "bundle")
    with only_training(run) as there:
        with put_back_if_refused(run, there=there):
            begin()
            _train_elsewhere(run, dataset, settings)
            if "RANK" in os.environ:
                if not _train_as_rank(run, dataset, settings):
                    return None
            else:
                _train_by_launcher(run, dataset, settings, missing)
        return pack_run(run, dataset, settings, taxonomy)


def join_training(dataset: Path, run: Path) -> None:
    """Be one more worker of a run that another process trains, until it has no more work.

    Raises UserError where no training at work takes workers; StoppedError when asked to stop.
    """
    if not (run / SETTINGS).is_file():
        raise nobody_at_work(run)
    run_method(TrainSettings.load(run / SETTINGS)).join(run, dataset)


def _train_elsewhere(run: Path, dataset: Path, settings: TrainSettings) -> None:
    """Let runs whose members are reused finish these first, by their own settings.

    Raises UserError for a member of another dataset, for one that would have to be trained
    while this process is a rank among others, and for settings of others that reach too far.
    """
    needed = [
        ref
        for ref in member_refs(run, settings).values()
        if ref.run != run and not is_there(ref, dataset)
    ]
    for ref in needed:
        if not ref.vouched:
            refuse_reaching_out(ref.run, ref.settings, dataset, ref.run / SETTINGS)
    for ref in needed:
        name = ref.member.name
        if "RANK" in os.environ:
            raise UserError(
                f"member {name} of {ref.run} is not trained to the end; train that run first, or "
                "start this training without torchrun."
            )
        if not is_there(ref, dataset):  # not finished along with another one
            finish_members(ref.run, dataset, ref.settings)


def finish_members(run: Path, dataset: Path, settings: TrainSettings) -> None:
    """Train what is missing of a run, and pack nothing. Raises UserError as `train` does."""
    check(settings, read_manifest(dataset), Taxonomy.load(dataset / "taxonomy.yaml"), run)
    with only_training(run):
        _train_by_launcher(run, dataset, settings, unfinished(run, dataset, settings))


def _train_as_rank(run: Path, dataset: Path, settings: TrainSettings) -> bool:
    end_with_parent()
    with StopRequest(settings.checkpoint.grace_s) as stop:
        packed = run_method(settings).train_as_rank(run, dataset, stop)
        if packed is not None:
            return packed
        mesh = join(settings.engine)
        if mesh.is_main:
            settings.save(run / SETTINGS)
        try:
            train_members(run, dataset, settings, mesh, stop)
        except StoppedError as stopped:
            leave()
            raise StoppedError(str(stopped) if mesh.is_main else "", stop.why) from None
        except RuntimeError as error:
            if not is_lost(error):
                raise
            raise JobError(
                f"rank {mesh.data.rank} lost the connection to another rank; run the same command "
                "again to continue from the last checkpoint"
            ) from None
        leave()
    return mesh.is_main


def unfinished(run: Path, dataset: Path, settings: TrainSettings) -> list[str]:
    """Return the members that are still to be trained, and "the detector" if it is.

    Raises UserError when a member or the detector of the run was trained otherwise.
    """
    missing = [
        member.name
        for member in settings.members
        if not is_finished(run, member.name, fingerprint(settings, member, dataset))
    ]
    return missing if is_trained(run, settings, dataset) else [*missing, "the detector"]


def _train_by_launcher(
    run: Path, dataset: Path, settings: TrainSettings, missing: list[str]
) -> None:
    settings.save(run / SETTINGS)
    if not missing:
        return
    if not run_method(settings).launch(run, dataset):
        _launch_ranks(run, dataset, settings)
    # The launcher's exit code is 0 when a signal ended it: only the files say what is finished.
    if left := unfinished(run, dataset, settings):
        raise JobError(
            f"the training stopped before {', '.join(left)} was finished; run the same command "
            "again"
        )


def _launch_ranks(run: Path, dataset: Path, settings: TrainSettings) -> None:
    accelerator = resolve_accelerator(settings.engine.accelerator)
    arguments = [str(run.resolve()), str(dataset.resolve())]
    launch(
        settings.engine,
        accelerator,
        "skindx.training.launching.rank",
        arguments,
        notes=run / RANKS,
        grace_s=settings.checkpoint.grace_s,
        imports=["skindx.training.jobs", "albumentations"],
    )
