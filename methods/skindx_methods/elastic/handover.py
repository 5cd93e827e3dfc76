"""State from living ranks in place of a checkpoint, when a training goes on in another group.

The ranks that stand furthest give: one of them what all hold alike, each of them what it holds
alone. With as many givers as ranks each goes on with its own; else by the rules that hold for
a checkpoint of another number of ranks. What a lost rank held alone is lost.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import torch
import torch.distributed as dist
from torch import Tensor

from skindx.core.errors import UserError
from skindx.core.state_checks import UnfitStateError
from skindx.training.checkpoint.keeper import At, Keeper
from skindx.training.checkpoint.resume import Resuming, parts_of, words_of
from skindx.training.checkpoint.saved_state import State, join, part_of, split
from skindx.training.config.engine import CheckpointSettings
from skindx.training.launching.supervise import StoppedError, StopRequest
from skindx.training.loop import average_agreed
from skindx.training.parallel.mesh import Mesh, ProcessGroup
from skindx.training.state import Training
from skindx_methods.elastic.membership import Group, Membership

Place = tuple[tuple[int, ...], int]
"""Where a rank stands, as its guard tells, and the steps of its epoch."""

Resumed = Callable[[Training[Any], Mapping[int, int], Callable[[str], None]], None]
"""Takes a training that goes on, the ranks that gave (see `take_over`), and what shows a line."""

Counts = dict[str, dict[str, int]]
"""What the furthest rank has counted in parts that each holds alone: part -> key -> number."""

_QUIT_S = 0.2
"""Seconds that an unfinished checkpoint waits for the others' parts when a rank is lost."""


class RegroupError(Exception):
    """All ranks leave their group after a step: one is to leave, or one to come in."""


@dataclass(frozen=True)
class Holding:
    """What a rank brings from the group before."""

    fingerprint: str
    folder: Path
    settings: CheckpointSettings
    mesh: Mesh
    at: At
    place: Place
    counts: Counts
    shared: State
    local: State

    @property
    def offer(self) -> tuple[Place, int, Counts]:
        """Where it stands, how many ranks there were, and what it has counted."""
        return self.place, self.mesh.data.size, self.counts

    def part(self, name: str, counts: Counts) -> State:
        """Return a part of what this rank held alone, with what the furthest rank has counted."""
        return {**self.local[name], **counts.get(name, {})}


class Held:
    """What a process holds from one group to the next."""

    membership: Membership
    group: Group
    holding: Holding | None = None
    resumed: Resumed
    stepped_at = noticed_at = 0.0
    """Times of the last step and of noticing that a rank is lost; 0: not yet."""
    longest_step_s = 3.0
    failures = 0
    """Number of groups in a row that were lost without a step."""

    def __init__(self) -> None:
        self.left: dict[str, str] = {}
        self.ranks: tuple[int, ...] = ()
        """Slots of the last group that went on, and why some have left since then."""

    def begin(
        self,
        group: Group,
        resumed: Resumed,
    ) -> None:
        """A group begins; `resumed` is called once a training goes on, with the ranks that gave."""
        self.group, self.resumed = group, resumed
        self.left |= group.left

    def lose(self) -> None:
        """The group has lost a rank."""
        self.noticed_at = self.noticed_at or time.monotonic()
        self.failures += 1

    def count_step(self) -> None:
        """A step is done."""
        now, self.failures = time.monotonic(), 0
        if self.stepped_at:
            self.longest_step_s = min(60.0, max(self.longest_step_s, now - self.stepped_at))
        self.stepped_at = now

    def save_alone(self) -> str:
        """Save what this rank holds, if it is the one that keeps; say what was done."""
        holding = self.holding
        if holding is None or not holding.mesh.is_main:
            return "the rank that keeps the checkpoints goes on from the last one"
        lines: list[str] = []
        mesh = replace(holding.mesh, data=ProcessGroup(0, 1))
        shared = {name: _Fixed(state) for name, state in holding.shared.items()}
        local = {name: _Fixed(state) for name, state in holding.local.items()}
        keeper = Keeper(
            holding.folder,
            holding.fingerprint,
            holding.settings,
            mesh,
            lines.append,
            shared=shared,
            per_rank=local,
        )
        if keeper.save(holding.at) and not lines:
            return "its state is saved, and the same command goes on from there"
        return "; ".join(lines) or "its state could not be saved"


class _Fixed:
    """A part of a training that is over: it is saved once more, and never loaded."""

    def __init__(self, state: State) -> None:
        self._state = state

    def state_dict(self) -> State:
        return self._state

    def load_state_dict(self, state: Any) -> None:
        raise NotImplementedError


class Handover:
    """Saves and stops a training as ever, and goes on from living ranks where there are any."""

    def __init__(
        self,
        held: Held,
        folder: Path,
        fingerprint: str,
        settings: CheckpointSettings,
        stop: StopRequest,
    ) -> None:
        self._held, self._stop = held, stop
        self._of = (fingerprint, folder, settings)
        self._resuming = Resuming(folder, fingerprint, settings, stop)
        self._training: Training[Any] | None = None

    def attach(
        self, training: Training[Any], say: Callable[[str], None]
    ) -> Callable[[Training[Any]], None]:
        """Go on from the living, else from the last checkpoint."""
        held, guard, fingerprint = self._held, training.guard, self._of[0]
        keeper = self._resuming.keep(training, say)
        givers = take_over(training, held.holding, fingerprint)
        if not givers:
            self._resuming.resume(training, say)
        self._training = training
        held.resumed(training, givers, say)
        if why := held.group.stop:
            keeper.save(at_of(training))
            where = words_of(at_of(training), training.epochs)
            raise StoppedError(f"{training.name}: {where}", why)
        held.holding = None  # no longer than needed: it is the whole state once more
        guard.stop_requested = lambda: self._stops_all
        guard.broken = lambda: held.membership.broken
        guard.due, guard.due_alike = keeper.due, keeper.due_by_steps
        guard.more = (
            lambda: self._leaving,
            lambda: not self._leaving,
            lambda: held.membership.newcomer,
        )
        save_and_stop = self._resuming.after_step(keeper)

        def after_step(training: Training[Any]) -> None:
            if guard.stop and training.position.agreed:  # interrupted while it validated
                self._ask_all(training)
            self._held.count_step()
            leave, stay, newcomer = guard.flags or (False, True, False)
            guard.stop = guard.stop or (leave and not stay)
            save_and_stop(training)
            if leave or newcomer:
                average_agreed(training, guard.sync(training.engine))
                raise RegroupError

        return after_step

    def _ask_all(self, training: Training[Any]) -> None:
        """Find out who is to stop and who to leave, between two steps."""
        answers = training.mesh.gather((self._stops_all, self._leaving))
        leaving = [one for _, one in answers]
        training.guard.stop = any(all_ for all_, _ in answers)
        training.guard.flags = (any(leaving), not all(leaving), True)

    @property
    def _leaving(self) -> bool:
        """A signal came to this rank; what is asked of all comes in other ways."""
        return self._stop.requested and all(why.startswith("SIG") for why in self._stop.reasons)

    @property
    def _stops_all(self) -> bool:
        return self._stop.requested and not self._leaving

    def settle(self, *, leaving: bool) -> None:
        """Hold on to the state, for the group that comes next."""
        training = self._training
        assert training
        self._held.membership.abort = lambda: None  # this rank has left the step
        self._resuming.settle(leaving=leaving, wait_s=_QUIT_S)
        if leaving and (exchange := training.engine.exchange):
            exchange.break_off()
        guard = training.guard
        shared, local = parts_of(training)
        self._held.holding = Holding(
            *self._of,
            training.mesh,
            at_of(training),
            (guard.place(training), training.position.step),
            guard.counts(training),
            {name: part.state_dict() for name, part in shared.items()},
            {name: part.state_dict() for name, part in local.items()},
        )
        if leaving:
            training.engine.close()


def take_over(training: Training[Any], holding: Holding | None, fingerprint: str) -> dict[int, int]:
    """Load what the ranks hold that stand furthest; every rank calls this.

    Returns these, each with the steps by which it stood behind the first of them, which it skips:
    their guard may let them stand alike all the same. Nothing is returned and changed where no
    rank holds anything of this training.

    Raises UserError for a state that is not of this training, or not finite.
    """
    mesh = training.mesh
    fits = holding if holding and holding.fingerprint == fingerprint else None
    offers = mesh.gather(fits.offer if fits else None)
    places = [offer[0] for offer in offers if offer]
    if not places:
        return {}
    furthest = max(places)
    givers = [rank for rank, offer in enumerate(offers) if offer and offer[0][0] == furthest[0]]
    source = next(rank for rank in givers if offers[rank][0] == furthest)
    gives = fits if mesh.data.rank in givers else None
    _, before, counts = offers[source]
    if gives and places.count(furthest) == mesh.data.size:
        shared = gives.shared
    else:
        shared = broadcast_state(gives.shared if gives else None, source, mesh)
    parts, local_parts = parts_of(training)
    try:
        for name, part in parts.items():
            part.load_state_dict(part_of(shared, name))
        for name, local in local_parts.items():
            mine = gives.part(name, counts) if gives else None
            if mine is not None and len(givers) == mesh.data.size:
                local.load_state_dict(_ThisRankAlone(mine, mesh))
            else:
                every = mesh.gather(None if mine is None else join(*split(mine)))
                local.load_state_dict([state for state in every if state is not None])
    except UnfitStateError as error:
        raise UserError(
            f"{training.name}: this rank received the state of another training ({error}); start "
            "this rank again with the version and settings of the other ranks."
        ) from None
    # A lost rank takes its part of the epoch's loss along: that of the others stands for it.
    sums = mesh.gather(gives.local["loss"]["loss_sum"] if gives else 0.0)
    training.position.loss_sum = sum(sums) * before / len(givers) / mesh.data.size
    return {rank: furthest[1] - offers[rank][0][1] for rank in givers}


class _ThisRankAlone(Sequence[State]):
    """The states of all ranks, of which this one reads its own alone."""

    def __init__(self, state: State, mesh: Mesh) -> None:
        self._state, self._data = state, mesh.data

    def __len__(self) -> int:
        return self._data.size

    @overload
    def __getitem__(self, rank: int) -> State: ...
    @overload
    def __getitem__(self, rank: slice) -> list[State]: ...
    def __getitem__(self, rank: int | slice) -> State | list[State]:
        if isinstance(rank, slice):
            return [self._state for _ in range(*rank.indices(len(self)))]
        if rank >= len(self):
            raise IndexError(rank)
        return self._state


def broadcast_state(state: State | None, source: int, mesh: Mesh) -> State:
    """Return on every rank the state that one brings. Raises UserError for one that is not finite.

    Tensors travel one by one, so that no rank holds them twice.
    """
    tensors: dict[str, Tensor] = {}
    head: Any = None
    if state is not None and mesh.data.rank == source:
        tensors, values = split(state)
        shapes = {
            name: (str(one.dtype).removeprefix("torch."), list(one.shape))
            for name, one in tensors.items()
        }
        head = json.dumps([shapes, values])
    shapes, values = json.loads(mesh.gather(head)[source])
    bad = ""
    for name, (dtype, shape) in shapes.items():
        if name not in tensors:
            tensors[name] = torch.empty(shape, dtype=getattr(torch, dtype))
        sent = tensors[name].to(mesh.device)
        dist.broadcast(sent, source)
        tensors[name] = sent.cpu()
        if not bad and sent.is_floating_point() and not bool(sent.isfinite().all()):
            bad = name
    if bad:
        raise UserError(
            f"rank {source} sent {bad} with invalid values (NaN or infinite); start the training "
            "again from its last checkpoint."
        )
    return join(tensors, values)


def at_of(training: Training[Any]) -> At:
    """Return where a training stands."""
    return At(training.position.epoch, training.position.step)
