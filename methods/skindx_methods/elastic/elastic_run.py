"""A rank of a run that goes on when ranks are lost: one group after the other, in one process."""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

import skindx
import skindx_methods
from skindx.core.atomic_files import sha256_file
from skindx.core.errors import JobError, UserError
from skindx.data.layout import MANIFEST
from skindx.models.classifier.classifier import build_classifier
from skindx.taxonomy import Taxonomy
from skindx.training.checkpoint.resume import words_of
from skindx.training.config.engine import EngineSettings
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import adopt_next_group, prepare_rank
from skindx.training.jobs import hold, train
from skindx.training.launching.local import ADDRESS
from skindx.training.launching.supervise import (
    RANKS,
    StoppedError,
    StopRequest,
)
from skindx.training.parallel.mesh import Mesh, ProcessGroup, is_lost, leave
from skindx.training.state import Training
from skindx.training.tasks.optimizer import build_optimizer
from skindx_methods.elastic.elastic_settings import ELASTIC, ElasticSettings
from skindx_methods.elastic.handover import Handover, Held, RegroupError, at_of
from skindx_methods.elastic.membership import CutOffError, Group, Membership
from skindx_methods.elastic.run_secret import RunSecret
from skindx_methods.elastic.sockets import Socket, open_sockets, shut, sockets_of_loops


class LeftError(StoppedError):
    """This rank leaves a training that goes on without it, and may come back."""

    @property
    def code(self) -> int:
        """143 after SIGTERM; 1 for a rank that is cut off."""
        return super().code if self.why.startswith("SIG") else 1

    @property
    def rank_code(self) -> int:
        """Exit code of a rank: the same, since the other ranks have not stopped."""
        return self.code


# Process groups that follow one another in one process, and the way out of a broken one.

_MEET_S = 15.0
"""Seconds in which the ranks of a group must reach each other."""


class Regroup:
    """This process's place in one group after the other."""

    def __init__(self, settings: EngineSettings, slots: int) -> None:
        """Settle the device, once."""
        self._settings, self._slots = settings, slots
        self._backend, self._device = prepare_rank(settings)
        self._kept: dict[str, Any] = {}
        self._before: set[Socket] = set()
        self._meeting: set[Socket] = set()

    def warm(self, settings: TrainSettings, classes: int) -> None:
        """Load what a first step loads, before others wait for this rank; alone, on no images."""
        member = next((one for one in settings.members if one.trunk != "frozen"), None)
        if member is None:
            return
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(self._backend, store=store, rank=0, world_size=1)
        try:
            adopt_next_group(self._backend)
            eager = self._settings.model_copy(update={"compile": False})  # for its own shapes
            mesh = Mesh(ProcessGroup(0, 1), self._device, eager)
            classifier = build_classifier(member, classes).to(self._device)
            optimizer = build_optimizer(classifier, settings.recipe_of(member), ())
            engine = Engine(classifier, optimizer, mesh, 2)
            side = member.preprocess.size
            outputs = engine(torch.zeros(2, side, side, 3, dtype=torch.uint8, device=self._device))
            engine.backward(outputs.sum(), 2)
            engine.step(0.0)
            engine.close()
        finally:
            self.leave()

    def enter(self, group: Group, membership: Membership) -> Mesh:
        """Join the process group of these ranks. Raises RuntimeError or DistError."""
        rank, size = group.members.index((membership.slot, membership.life)), len(group.members)
        limit = min(_MEET_S, self._settings.timeout_s)
        self._before, self._meeting = open_sockets(), set()
        membership.abort = self.abort
        # Its connection is shut with the others: gloo waits at the store for lost ranks too.
        store = PrefixStore(f"group-{group.number}", membership.connect(limit))
        self._meeting = open_sockets() - self._before
        # A part of the names under which ranks meet; it stays increased where they do not.
        dist.distributed_c10d._world.group_count = 0
        dist.init_process_group(
            self._backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=limit)
        )
        adopt_next_group(self._backend)
        timeout = timedelta(seconds=self._settings.timeout_s)
        dist.distributed_c10d.set_timeout(timeout, dist.group.WORLD)
        mesh = Mesh(
            ProcessGroup(rank, size),
            self._device,
            self._settings,
            number=group.number,
            started=self._slots,
            kept=self._kept,
        )
        membership.secret.prove(mesh.gather, rank, group.number)
        return mesh

    def abort(self) -> None:
        """Let every collective of this group fail, whatever it waits for; by another thread."""
        if self._backend == "nccl" and dist.is_initialized():
            dist.distributed_c10d._abort_process_group()
        shut((sockets_of_loops() - self._before) | self._meeting)

    def leave(self) -> None:
        """Let go of the group, broken or not."""
        for _ in range(2):  # a backend that cannot shut down has been taken out by then
            with suppress(RuntimeError, dist.DistError):
                leave()


EVENTS = "elastic.jsonl"
"""File of a run with one row a group: who left, who came, and where the group went on."""


_STOPS_S = 5.0
"""Seconds after which a rank that must stop while it waits for others saves alone."""

_MOST_FAILURES = 20


def train_elastic(
    run: Path,
    dataset: Path,
    settings: TrainSettings,
    stop: StopRequest,
    *,
    only: Sequence[str] = (),
) -> bool:
    """Train as one rank, in one group after the other; return whether this rank is to pack.

    Raises StoppedError when all stop, LeftError when this rank leaves alone, UserError for a rank
    with other code, data or settings.
    """
    elastic = settings.engine.elastic
    assert isinstance(elastic, ElasticSettings)
    slots = int(os.environ["WORLD_SIZE"])
    regroup = Regroup(settings.engine, slots)
    slot, store = int(os.environ["RANK"]), _hosted()
    regroup.warm(settings, len(Taxonomy.load(dataset / "taxonomy.yaml").keys))
    membership = Membership(
        (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])),
        slot,
        slots,
        min_ranks=elastic.min_ranks,
        silent_s=elastic.silent_s,
        identity=identity(dataset, settings),
        secret=RunSecret.within(run / RANKS),
        timeout_s=settings.engine.timeout_s,
    )
    held = Held()
    held.membership = membership
    work = partial(train, run, dataset, settings, stop=stop, only=only)
    try:
        while group := membership.join(
            elastic.silent_s + 3 * held.longest_step_s,
            give_up=lambda waited_s: stop.requested and (not held.holding or waited_s > _STOPS_S),
        ):
            held.begin(group, partial(_note, run, held))
            packs = _in_group(regroup, held, work, stop)
            if packs is not None:
                membership.leave("it has finished", end=True)
                return packs
    except CutOffError as error:
        why = stop.why if stop.requested else str(error)
        raise LeftError(f"rank {slot} ends: {error}; {held.save_alone()}", why) from None
    except StoppedError as stopped:
        membership.leave(STOPPED, end=not isinstance(stopped, LeftError))
        raise
    finally:
        membership.leave("it failed")
        del store
    if membership.end == STOPPED:
        raise StoppedError("the others have stopped")
    return False


def _in_group(
    regroup: Regroup, held: Held, work: Callable[..., None], stop: StopRequest
) -> bool | None:
    """Train in a group until it is done, and return whether this rank packs; None: it broke."""
    membership, slot = held.membership, held.membership.slot
    try:
        mesh = regroup.enter(held.group, membership)
        holds = partial(_hold, held.group.number)
        work(mesh=mesh, saves=partial(Handover, held), holds=holds)
        with suppress(RuntimeError, dist.DistError):  # one has left already
            mesh.barrier()
        return mesh.is_main
    except RegroupError:
        if stop.requested:
            if not membership.leave(f"{stop.why} came to it"):
                raise CutOffError("the store cannot be reached") from None
            raise LeftError(f"rank {slot} left, and the others go on", stop.why) from None
    except (StoppedError, UserError):
        raise
    except Exception as error:
        if not (_is_lost(error) or membership.broken):
            raise
        held.lose()
        if held.failures > _MOST_FAILURES:
            raise JobError(
                f"rank {slot} could not train a step in {held.failures} consecutive groups of "
                f"ranks ({error}); check that the nodes can reach each other, or set "
                "engine.interface"
            ) from None
    finally:
        regroup.leave()
    return None


STOPPED = "all have stopped"


def _is_lost(error: BaseException | None) -> bool:
    """Tell whether an error, or what it came from, is a rank that is gone."""
    return error is not None and (
        isinstance(error, dist.DistError)
        or (isinstance(error, Exception) and is_lost(error))
        or _is_lost(error.__cause__ or error.__context__)
    )


def host_store(variables: MutableMapping[str, str]) -> Any:
    """Host the store at which the ranks of an elastic run meet, as long as the result is kept.

    It listens at MASTER_ADDR and MASTER_PORT of `variables`, which are set where they are not: then
    no other machine reaches it. Raises UserError where it cannot listen.
    """
    address = variables.setdefault("MASTER_ADDR", ADDRESS)
    port = int(variables.get("MASTER_PORT", 0))
    try:
        # The store listens only at this address; torch would listen at all of the machine's.
        door = socket.create_server((address, port))
        port = door.getsockname()[1]
        store = dist.TCPStore(  # type: ignore[attr-defined]
            address, port, is_master=True, wait_for_workers=False, master_listen_fd=door.detach()
        )
    except OSError as error:
        raise UserError(
            f"the ranks of an elastic run cannot connect at {address}:{port} ({error.strerror}); "
            "set MASTER_ADDR and MASTER_PORT to an address and a free port of this machine, or "
            "unset both."
        ) from None
    variables.update({"MASTER_PORT": str(port), ELASTIC: "1"})
    # Torch prints twenty lines of C++ for each connection to a rank that is gone.
    variables.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    return store


def _hosted() -> Any:
    """Hold the store here, where no process beside the ranks does: on the first rank."""
    elsewhere = (ELASTIC, "TORCHELASTIC_USE_AGENT_STORE")
    if os.environ["RANK"] != "0" or any(os.environ.get(name) for name in elsewhere):
        return None
    return host_store(os.environ)


def identity(dataset: Path, settings: TrainSettings) -> dict[str, str]:
    """Return hashes of what must be the same on all ranks."""
    code = sha256()
    for package in (Path(str(module.__file__)).parent for module in (skindx, skindx_methods)):
        for file in sorted(package.rglob("*.py")):
            code.update(f"{file.relative_to(package)}\n".encode() + file.read_bytes())
    local = {
        "engine": {"accelerator", "hostfile", "launcher", "port", "interface", "timeout_s"},
        "loader": {"threads", "prefetch"},
    }
    chosen = json.dumps(settings.model_dump(mode="json", exclude=local), sort_keys=True)
    return {
        "code": code.hexdigest(),
        "data": sha256_file(dataset / MANIFEST),
        "settings": sha256(chosen.encode()).hexdigest(),
    }


def _hold(number: int, run: Path, wait_s: float, held: ExitStack) -> None:
    """Keep other trainings away; a lost rank of this one may still do so itself."""
    if number == 1:
        hold(run, wait_s, held)
    else:
        with suppress(UserError):
            hold(run, 0, held)


def _note(
    run: Path,
    held: Held,
    training: Training[Any],
    givers: Mapping[int, int],
    say: Callable[[str], None],
) -> None:
    """Write an event, and show a line, about a group that goes on; the main rank does."""
    group, left, before = held.group, held.left, held.ranks
    slots = [slot for slot, _ in group.members]
    # Groups that did not come to a step are in no row: who left or came in them is told here.
    came = [slot for slot in slots if slot not in before or str(slot) in left]
    seconds, noticed = _since(held.stepped_at), _since(held.noticed_at)
    held.left, held.ranks, held.noticed_at = {}, tuple(slots), 0.0
    if not training.mesh.is_main:
        return
    at, feedback = at_of(training), hasattr(training.engine.exchange, "residual_M")
    row = {
        "when": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "group": group.number,
        "ranks": slots,
        "left": left,
        "came": came,
        "training": training.name,
        "epoch": at.epoch + 1,
        "step": at.step,
        "state_from": [slots[rank] for rank in givers],
        "steps_skipped": {str(slots[rank]): steps for rank, steps in givers.items() if steps},
        "error_feedback_lost": sorted(left) if feedback and givers else [],
        "seconds_since_last_step": seconds,
        "seconds_since_noticed": noticed,
    }
    with suppress(OSError), (run / EVENTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
    if group.number > 1:
        changes = [f"rank {slot} left ({why})" for slot, why in left.items()]
        changes += [f"rank {slot} came" for slot in came]
        source = "living ranks" if givers else "the last checkpoint, or the start"
        say(
            f"{', '.join(changes) or 'the ranks met again'}: {len(slots)} go on from {source}, "
            f"{words_of(at, training.epochs)}"
        )


def _since(moment: float) -> float | None:
    return round(time.monotonic() - moment, 2) if moment else None
