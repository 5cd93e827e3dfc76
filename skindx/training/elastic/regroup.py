"""Process groups that follow one another in one process, and the way out of a broken one."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from skindx.models.classifier.classifier import build_classifier
from skindx.training.config.engine import EngineSettings
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.engine import Engine
from skindx.training.deepspeed.ranks import adopt_next_group, prepare_rank
from skindx.training.elastic.membership import Group, Membership
from skindx.training.elastic.sockets import Socket, open_sockets, shut, sockets_of_loops
from skindx.training.parallel.mesh import Mesh, ProcessGroup, leave
from skindx.training.tasks.optimizer import build_optimizer

_MEET_S = 15.0
"""Ranks that are in a group have so long to reach each other."""


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
        return Mesh(
            ProcessGroup(rank, size),
            self._device,
            self._settings,
            number=group.number,
            started=self._slots,
            kept=self._kept,
        )

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
