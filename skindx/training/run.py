"""A training run from dataset to bundle: check everything, start the ranks, calibrate, pack."""

import os
from collections.abc import Callable
from pathlib import Path

from skindx.core.errors import JobError, UserError
from skindx.data.layout import RECIPE
from skindx.data.manifest import Record, read_manifest
from skindx.data.stored_image import check_sample
from skindx.models.bundle.bundle import BUNDLE, Bundle
from skindx.taxonomy import Taxonomy
from skindx.taxonomy.matching import check_urgencies
from skindx.training.checks import check
from skindx.training.config.run import SETTINGS, TrainSettings
from skindx.training.deepspeed.joining import join
from skindx.training.deepspeed.launch import launch
from skindx.training.ensembles.distil import STUDENT, student_settings, write_targets
from skindx.training.ensembles.member_refs import is_there, member_refs
from skindx.training.ensembles.pack import pack_run
from skindx.training.ensembles.trust import refuse_reaching_out
from skindx.training.feeding.folds import learning
from skindx.training.finished.detector import is_trained
from skindx.training.finished.fingerprint import fingerprint
from skindx.training.finished.member import is_finished
from skindx.training.launching.notes import RANKS
from skindx.training.launching.place import settle_place
from skindx.training.launching.stopping import StoppedError, StopRequest, end_with_parent
from skindx.training.parallel.devices import resolve_accelerator
from skindx.training.parallel.mesh import is_lost, leave
from skindx.training.refused import only_training, put_back_if_refused
from skindx.training.towers import with_towers
from skindx.training.worker import train as train_members


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
    known to fail, and StoppedError when SIGTERM ended it; the same call goes on from there. With
    `distil` a student is trained as well and packed as RUN/student/bundle. `begin` is called when
    all is checked and nothing is written yet.
    """
    settle_place()
    records = read_manifest(dataset)
    taxonomy = Taxonomy.load(dataset / "taxonomy.yaml")
    check_urgencies(
        taxonomy,
        f"build the dataset again with `skindx build {dataset / RECIPE} --out {dataset}`, which "
        "keeps its splits, and give --urgency CLASS=urgent|soon|routine where it asks for it",
    )
    settings = with_towers(settings)
    check(settings, records, taxonomy, run)
    check_sample(dataset, learning(records))
    if settings.distil:
        if "RANK" in os.environ:
            raise UserError("distil starts ranks of its own; run `skindx train` without torchrun.")
        check(student_settings(run, settings), records, taxonomy, run / STUDENT)
    missing = unfinished(run, dataset, settings)
    BUNDLE.check(run / "bundle")
    with only_training(run) as there:
        with put_back_if_refused(run, there=there):
            begin()
            _train_elsewhere(run, dataset, settings, records)
            if "RANK" in os.environ:
                if not _train_as_rank(run, dataset, settings):
                    return None
            else:
                _train_by_launcher(run, dataset, settings, missing)
        bundle = pack_run(run, dataset, settings, taxonomy)
        if not settings.distil:
            return bundle
        write_targets(run, dataset, settings, bundle)
        train(dataset, student_settings(run, settings), run / STUDENT)
    return bundle


def _train_elsewhere(
    run: Path, dataset: Path, settings: TrainSettings, records: list[Record]
) -> None:
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
                f"member {name} of {ref.run} is not finished; train that run first, or start "
                "this one without torchrun."
            )
        if is_there(ref, dataset):  # finished along with another one
            continue
        check(ref.settings, records, Taxonomy.load(dataset / "taxonomy.yaml"), ref.run)
        with only_training(ref.run):
            missing = unfinished(ref.run, dataset, ref.settings)
            _train_by_launcher(ref.run, dataset, ref.settings, missing)


def _train_as_rank(run: Path, dataset: Path, settings: TrainSettings) -> bool:
    end_with_parent()
    with StopRequest(settings.checkpoint.grace_s) as stop:
        if settings.engine.schedule != "data":
            from skindx.training.hopping.launching import train_as_worker

            return train_as_worker(run, dataset, settings, stop)
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
                f"rank {mesh.data.rank} lost another rank; run the same command again to go on "
                "from the last checkpoint"
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
    if settings.engine.schedule == "data":
        _launch_ranks(run, dataset, settings)
    else:
        from skindx.training.hopping.launching import launch_workers

        launch_workers(run, dataset, settings)
    # The launcher's exit code is 0 when a signal ended it: only the files say what is finished.
    if left := unfinished(run, dataset, settings):
        raise JobError(f"training ended without finishing {', '.join(left)}; run it again")


def _launch_ranks(run: Path, dataset: Path, settings: TrainSettings) -> None:
    accelerator = resolve_accelerator(settings.engine.accelerator)
    arguments = [str(run.resolve()), str(dataset.resolve())]
    launch(
        settings.engine,
        accelerator,
        "skindx.training.rank",
        arguments,
        notes=run / RANKS,
        grace_s=settings.checkpoint.grace_s,
        imports=["skindx.training.worker", "albumentations"],
    )
