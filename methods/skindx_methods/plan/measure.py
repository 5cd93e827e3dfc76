"""`skindx plan measure`: every network of a config, timed on ranks that share this node."""

import json
import multiprocessing
import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from skindx import __version__
from skindx.core import measurement
from skindx.core.atomic_files import sha256_file
from skindx.core.cost.profile import Profile
from skindx.core.errors import JobError, UserError
from skindx.core.machine import cpu_count, spawn_context
from skindx.data.layout import MANIFEST
from skindx.data.loader.batches import partition
from skindx.data.manifest import read_manifest
from skindx.taxonomy import Taxonomy
from skindx.training.checks import check
from skindx.training.config.parallel_form import DataSettings
from skindx.training.config.run import MemberSettings, TrainSettings
from skindx.training.deepspeed.ranks import accelerator_variables, join
from skindx.training.launching.supervise import end_with_parent
from skindx.training.parallel.mesh import leave, peak_memory, resolve_accelerator, resolve_ranks
from skindx.training.tasks.open_sets import TrainingData
from skindx_methods.plan.measured_steps import profile_member, variant_of
from skindx_methods.plan.profiles import Profiles

BUDGET_S = 20.0
"""Seconds for the timed steps of all networks; starting, compiling and reading are extra."""

_LIMIT_S = 300.0

NOTHING = (
    "no member of this run trains a network; there is nothing to measure or to plan (heads on a "
    "frozen trunk learn from features that are computed once)."
)

Key = tuple[str, int, int, str]


def measure(
    settings: TrainSettings,
    dataset: Path,
    *,
    ranks: int | None = None,
    seconds: float = BUDGET_S,
) -> Profiles:
    """Time each network of the members on as many ranks as this node is to have, all at once.

    `seconds` are for the timed steps of all networks; they end earlier where times are sure, and
    later where a few steps take longer. Writes nothing. Raises UserError for settings that cannot
    be trained, and JobError.
    """
    records = read_manifest(dataset)
    taxonomy = Taxonomy.load(dataset / "taxonomy.yaml")
    with tempfile.TemporaryDirectory(prefix="skindx-plan-") as folder:
        check(settings, records, taxonomy, Path(folder))
    accelerator = resolve_accelerator(settings.engine.accelerator)
    here = ranks or resolve_ranks(settings.engine)
    networks = distinct(settings)
    if not networks:
        raise UserError(NOTHING)
    data = {
        key: TrainingData(dataset, *partition(records, member.fold, settings.folds), taxonomy.keys)
        for key, member in networks.items()
    }
    os.environ.update(accelerator_variables(accelerator))
    budget_s = seconds / len(networks)
    result = [
        _on_ranks(_Work(settings, member, data[key], here, budget_s))
        for key, member in networks.items()
    ]
    return Profiles(
        version=__version__,
        host=_host(accelerator),
        device=accelerator,
        ranks=here,
        cores=max(1, cpu_count() // here),
        dataset=sha256_file(dataset / MANIFEST),
        images=len(next(iter(data.values())).train),
        base_bytes=min(base for _, base in result),
        networks=tuple(profile for profile, _ in result),
    )


def distinct(settings: TrainSettings) -> dict[Key, MemberSettings]:
    """Return one member of each network, image size and batch, with its head and arguments.

    Without heads on frozen trunks, which take no steps of their own through a network.
    """
    result: dict[Key, MemberSettings] = {}
    for member in settings.members:
        if member.trunk != "frozen":
            result.setdefault(key_of(settings, member), member)
    return result


def key_of(settings: TrainSettings, member: MemberSettings) -> Key:
    """Return what decides a member's times."""
    recipe = settings.recipe_of(member)
    batch = recipe.batch // recipe.accumulate
    return member.model, member.preprocess.size, batch, variant_of(settings, member)


@dataclass(frozen=True)
class _Work:
    """Measurements of each rank of the node."""

    settings: TrainSettings
    member: MemberSettings
    data: TrainingData
    ranks: int
    budget_s: float

    @property
    def batch(self) -> int:
        """Images of one rank in one piece."""
        recipe = self.settings.recipe_of(self.member)
        rank_batch = max(2, recipe.batch // (self.ranks * recipe.accumulate))
        return min(rank_batch, len(self.data.train))


def _on_ranks(work: _Work) -> tuple[Profile, int]:
    """Let all ranks of the node measure the same at once: they share its memory and its cores.

    They are no forks of this process, which has read weights: OpenMP's threads do not survive a
    fork, and a rank that waits for them waits for ever.
    """
    context: Any = spawn_context()
    workers = []
    try:
        for rank in range(work.ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=_rank, args=(work, rank, theirs), daemon=True)
            process.start()
            theirs.close()
            workers.append((process, ours))
        answers = [_answer(ours) for _, ours in workers]
    finally:
        for process, ours in workers:
            process.kill()
            process.join()
            ours.close()
    profiles = [Profile.model_validate(raw) for raw, _ in answers]
    slowest = sorted(profiles, key=lambda profile: profile.at[-1].compute_s)[len(profiles) // 2]
    return slowest, round(median(base for _, base in answers))


def _answer(pipe: Connection) -> tuple[dict[str, Any], int]:
    try:
        if not pipe.poll(_LIMIT_S):
            raise JobError(f"a measuring rank did not answer within {_LIMIT_S:g} s")
        worked, value = json.loads(pipe.recv_bytes())
    except EOFError:
        raise JobError(
            "a measuring rank was killed, most often because memory ran out; lower recipe.batch "
            "or --ranks"
        ) from None
    if worked == "refused":
        raise UserError(value)
    if worked != "measured":
        raise JobError(f"a measuring rank failed:\n{value}")
    profile, base = value
    return profile, base


def _rank(work: _Work, rank: int, answers: Connection) -> None:
    """Measure in a process of its own, which ends with the one that started it."""
    end_with_parent()
    parent = multiprocessing.parent_process()
    if parent is None or not parent.is_alive():
        return  # it was killed while this rank began
    try:
        _send(answers, "measured", _measured(work, rank))
    except UserError as error:
        _send(answers, "refused", str(error))
    except Exception:
        import traceback

        _send(answers, "failed", traceback.format_exc())


def _send(answers: Connection, *answer: Any) -> None:
    answers.send_bytes(json.dumps(answer).encode())  # `send` would pickle it


def _measured(work: _Work, rank: int) -> tuple[dict[str, Any], int]:
    import torch

    if not _threads_given():
        torch.set_num_threads(max(1, cpu_count() // work.ranks))
    os.environ.update(_alone(rank, work.ranks))
    whole = {"zero": 0, "parallel": DataSettings()}  # a rank alone shares nothing out
    mesh = join(work.settings.engine.model_copy(update=whole))
    base = peak_memory(mesh.device)
    alone = work.settings.model_copy(update={"engine": mesh.settings})
    profile = profile_member(
        alone, work.member, work.data, mesh, batch=work.batch, budget_s=work.budget_s
    )
    leave()
    return profile.model_dump(mode="json"), base


def _alone(rank: int, ranks: int) -> Mapping[str, str]:
    """Return the variables of a world of one rank, on its part of the node."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    threads = os.environ["OMP_NUM_THREADS"] if _threads_given() else max(1, cpu_count() // ranks)
    return {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": str(rank),
        "LOCAL_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": str(threads),
    }


def _threads_given() -> bool:
    """Tell whether the user says how many threads a process has, as for `skindx train`."""
    return bool(os.environ.get("OMP_NUM_THREADS"))


def _host(accelerator: str) -> str:
    if accelerator == "cuda":
        import torch

        return str(torch.cuda.get_device_name(0))
    return measurement.cpu_model()
