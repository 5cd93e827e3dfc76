"""Who trains: numbered groups of ranks in a store that all reach, and the ranks' heartbeats.

Each rank writes a card with every heartbeat: its slot (0 to N - 1, the same for ever), its life
(which process of that slot), and whether it is in a group or waits for the next one. A group is a
record under its number, written once: the first rank of those that wait proposes who is in, and
whoever writes first has decided. So only ranks that reach the store go on. All of it is signed by
the secret of the run: what another process writes there makes it no rank.

A thread writes the cards and reads the others'. Time is counted in its heartbeats: a process that
was stopped, or a clock that jumps, makes nobody else look silent.
"""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from skindx.core.errors import UserError
from skindx.workers.worker_process import leave_process
from skindx_methods.elastic.run_secret import ForeignError, RunSecret
from skindx_methods.elastic.sockets import (
    Card,
    drain,
    family,
    has_ended,
    listener,
    open_sockets,
    shut,
)

BEAT_S = 0.2
"""Seconds between two heartbeats."""

JOIN_S = 30.0
"""Seconds that ranks wait for more ranks when they are too few or none has trained yet."""

STUCK_S = 8.0
"""A process whose training thread computes nothing in a broken group for so long ends, and can come
back: gloo (torch 2.15) may miss the end of a connection into which it just sends (`waitSend`)."""

_COMPUTES_S = 0.05
"""Processor seconds between two such moments below which a thread computes nothing."""

_POLL_S = 0.02
_STORE_ERRORS = (dist.DistError, RuntimeError)


@dataclass(frozen=True)
class Group:
    """Ranks that train together; the order of its members is that of their ranks."""

    number: int
    members: tuple[tuple[int, int], ...]
    """Pairs (slot, life) of the ranks."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Slot of each rank that was in the group before, and why it is not any more."""
    came: tuple[int, ...] = ()
    """Slots that were not in the group before."""
    stop: str = ""
    """Reason why these ranks only save and stop."""


class CutOffError(Exception):
    """This rank cannot reach the store, or another process has its place."""


class Membership:
    """A rank's place among those that train; `join` is called again after each group."""

    def __init__(
        self,
        address: tuple[str, int],
        slot: int,
        slots: int,
        *,
        min_ranks: int,
        silent_s: float,
        identity: Mapping[str, str],
        secret: RunSecret,
        join_s: float = JOIN_S,
        timeout_s: float = 60,
    ) -> None:
        """Take the place `slot` of `slots`, at the store of this address, and begin to beat.

        The thread that calls this is the one that trains.

        `identity` is what must be the same on all ranks (name -> hash). Raises UserError where it
        is not, and where the store cannot be reached.
        """
        self.slot, self.slots, self._min, self.silent_s = slot, slots, min_ranks, silent_s
        self._join_s, self.secret = join_s, secret
        self.address, self._timeout_s = address, timeout_s
        self.broken = self.cut = self.newcomer = False
        """The group is broken; this rank is cut off; a rank waits to be taken in."""
        self.why = self.end = ""
        """Why the group is broken; why the training is over for all."""
        self.abort: Callable[[], None] = lambda: None
        """Called again and again by a thread while the group is broken and not left."""
        before = open_sockets()
        self._store, self._beats = self.connect(), self.connect()
        self._sockets = open_sockets() - before
        self._check(identity)
        self._listener = listener(self._local_address())
        self.life = self._store.add(f"life/{slot}", 1)
        first = {f"card/{other}": "{}" for other in range(slots)} | {"number": "0", "end": "-"}
        for name, text in first.items():
            self._store.compare_set(name, "", secret.seal(name, text))
        self._card = Card(
            slot, self.life, "waiting", 0, 0, socket.gethostname(), self._listener.getsockname()[:2]
        )
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._cards: dict[int, Card] = {}
        self._quiet: dict[int, float] = {}
        """Seconds of this rank's heartbeats since a card has changed."""
        self._group: Group | None = None
        self._last = 0
        self._unreached = self._stuck_s = self._computed_s = 0.0
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"skindx-{name}", daemon=True)
            for name, work in (("heartbeat", self._beat), ("watch", self._watch))
        ]
        for thread in self._threads:
            thread.start()

    def connect(self, timeout_s: float | None = None) -> TCPStore:
        """Return a connection to the store. Raises UserError when nobody answers there."""
        host, port = self.address
        timeout = timedelta(seconds=timeout_s or self._timeout_s)
        try:
            return TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
        except _STORE_ERRORS as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise UserError(
                f"rank {self.slot} cannot connect to the store of the ranks at {host}:{port} "
                f"({reason}); check that the process that starts the ranks is running, and that "
                "this machine can reach it."
            ) from None

    def _local_address(self) -> str:
        """Return this machine's address as those at the store see it."""
        with socket.socket(family(self.address), socket.SOCK_DGRAM) as probe:
            probe.connect(self.address)  # UDP: asks the routing table, sends nothing
            return str(probe.getsockname()[0])

    def _check(self, identity: Mapping[str, str]) -> None:
        name, text = "identity", json.dumps(dict(identity), sort_keys=True)
        there = self._store.compare_set(name, "", self.secret.seal(name, text))
        try:
            theirs = json.loads(self.secret.opened(name, there))
        except ForeignError:
            raise UserError(
                "the ranks at {}:{} belong to another run than rank {} on {}, or do not "
                "use the same run folder; set another MASTER_PORT for this run, or the same run "
                "folder for all ranks.".format(*self.address, self.slot, socket.gethostname())
            ) from None
        if other := [name for name, value in identity.items() if theirs.get(name) != value]:
            raise UserError(
                f"rank {self.slot} on {socket.gethostname()} cannot join the training, because "
                f"its {' and '.join(other)} differ from the other ranks; start it again with the "
                "same settings as the other ranks."
            )

    # What the threads do.

    def _beat(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(BEAT_S) and not self.cut:
            now = time.monotonic()
            passed, before = min(now - before, 2 * BEAT_S), now
            try:
                self._write()
                cards, number, _ = self._read(self._beats)
            except _STORE_ERRORS:
                continue  # `_watch` counts how long
            except ForeignError as error:
                self._cut_off(str(error))
                return
            self._unreached = 0.0
            with self._lock:
                self._see(cards, passed)
            self._judge(cards, number)
            drain(self._listener)

    def _watch(self) -> None:
        """Notice that the store is out of reach, even while a call to it hangs."""
        while not self._ended.wait(BEAT_S):
            self._unreached += BEAT_S
            if self._unreached > self.silent_s:
                self._cut_off("the store cannot be reached")
            if self.cut:
                shut(self._sockets)
            if self.broken:
                self.abort()
                self._end_if_stuck()

    def _end_if_stuck(self) -> None:
        computed_s = time.clock_gettime(self._clock)
        if computed_s - self._computed_s > _COMPUTES_S:
            self._stuck_s, self._computed_s = 0.0, computed_s
        self._stuck_s += BEAT_S
        if self._stuck_s > STUCK_S:
            print(f"rank {self.slot} is stuck in a broken group, and ends", file=sys.stderr)
            leave_process(1)

    def _break(self, why: str, group: Group | None = None) -> None:
        with self._lock:
            if group is not None and group is not self._group:
                return  # it was left meanwhile
            if not self.broken:
                self.why, self.broken = why, True
        self.abort()

    def _cut_off(self, why: str) -> None:
        if not self.cut:
            self.cut = True
            self._break(why)

    def _write(self, **changes: Any) -> None:
        """Write the card, with these changes; by either thread."""
        store = self._store if changes else self._beats
        with self._writing:
            self._card = replace(self._card, beat=self._card.beat + 1, **changes)
            name, text = f"card/{self.slot}", json.dumps(asdict(self._card))
            store.set(name, self.secret.seal(name, text))

    def _read(self, store: TCPStore) -> tuple[dict[int, Card], int, str]:
        """Return all ranks' cards, the number of the newest group, and why all is over, if so.

        Notice a newer process of this rank's slot. A card that is no rank's leaves the last one.
        Raises ForeignError for anything else that is no rank's.
        """
        names = [*(f"card/{slot}" for slot in range(self.slots)), "number", "end"]
        *sealed, life = store.multi_get([*names, f"life/{self.slot}"])
        if life != str(self.life).encode():
            self._cut_off("another process has taken its place")
        number, end = map(self.secret.opened, names[-2:], sealed[-2:])
        cards = dict(self._cards)
        for slot in range(self.slots):
            with suppress(ForeignError):
                if raw := json.loads(self.secret.opened(names[slot], sealed[slot])):
                    cards[slot] = Card(**{**raw, "address": tuple(raw["address"])})
        return cards, int(number), end.removeprefix("-")

    def _see(self, cards: Mapping[int, Card], passed: float) -> None:
        for slot, card in cards.items():
            before = self._cards.get(slot)
            changed = before is None or (before.life, before.beat) != (card.life, card.beat)
            self._quiet[slot] = 0.0 if changed else self._quiet.get(slot, 0.0) + passed
        self._cards = dict(cards)

    def _judge(self, cards: Mapping[int, Card], number: int) -> None:
        """Break the group that has lost a member, or has gone on without this rank."""
        group = self._group
        if group is None:
            return
        if number > group.number:
            self._break("the others went on without it", group)
        for slot, life in group.members:
            card = cards.get(slot)
            if slot == self.slot or card is None:
                continue
            if card.life != life:
                self._break(f"rank {slot} has ended", group)
            elif card.state != "in" and (card.state == "left" or card.number > group.number):
                self._break(f"rank {slot} left the step", group)
            elif self._quiet[slot] > self.silent_s:
                self._break(f"rank {slot} is silent", group)
        members = {slot for slot, _ in group.members}
        self.newcomer = any(
            card.state == "waiting"
            and card.number == group.number + 1
            and slot not in members
            and self._quiet[slot] <= self.silent_s
            for slot, card in cards.items()
        )

    # What the training calls.

    def join(
        self, patience_s: float = 10.0, give_up: Callable[[float], bool] = lambda waited_s: False
    ) -> Group | None:
        """Wait for the next group and return it; None: the training has ended meanwhile.

        Members of the last group that are alive have `patience_s` to leave their step. Raises
        CutOffError, also when it is to `give_up` after so many seconds.
        """
        with self._lock:
            self._group, self.broken, self.newcomer = None, False, False
            self._stuck_s = 0.0
        since, waiting_for = time.monotonic(), 0
        newest = (0, since)
        while True:
            if self.cut:
                raise CutOffError(self.why)
            if give_up(time.monotonic() - since):
                raise CutOffError("it was asked to stop while it waited for other ranks")
            try:
                cards, number, self.end = self._read(self._store)
                if self.end:
                    return None
                group = self._record(number)
                mine = (self.slot, self.life)
                if group and number > self._last and mine in group.members:
                    return self._enter(group)
                if waiting_for != number + 1:
                    waiting_for, since = number + 1, time.monotonic()
                    self._write(state="waiting", number=waiting_for)
                with self._lock:
                    self._see(cards, 0.0)
                if len(cards) > newest[0]:
                    newest = (len(cards), time.monotonic())
                now = time.monotonic()
                proposal = self._proposal(
                    number,
                    group,
                    cards,
                    waited_s=now - since,
                    alone_s=now - newest[1],
                    patience_s=patience_s,
                )
                if proposal:
                    name, text = f"group/{number + 1}", json.dumps(asdict(proposal))
                    self._store.compare_set(name, "", self.secret.seal(name, text))
                    before, after = (
                        self.secret.seal("number", str(one)) for one in (number, number + 1)
                    )
                    self._store.compare_set("number", before, after)
                    continue
            except ForeignError as error:
                self._cut_off(str(error))
                continue
            except _STORE_ERRORS:
                time.sleep(_POLL_S)  # `_watch` says when it has been too long
            time.sleep(_POLL_S)

    def _record(self, number: int) -> Group | None:
        if not number:
            return None
        name = f"group/{number}"
        raw = json.loads(self.secret.opened(name, self._store.get(name)))
        members = tuple((slot, life) for slot, life in raw["members"])
        return Group(number, members, raw["left"], tuple(raw["came"]), raw["stop"])

    def _enter(self, group: Group) -> Group:
        self._last = group.number
        self._write(state="in", number=group.number)
        with self._lock:
            self._quiet = dict.fromkeys(self._quiet, 0.0)
        self._group = group
        return group

    def _proposal(
        self,
        number: int,
        group: Group | None,
        cards: Mapping[int, Card],
        *,
        waited_s: float,
        alone_s: float,
        patience_s: float,
    ) -> Group | None:
        """Return who is to be in the next group, if it is for this rank to say, and time."""
        ready = [
            slot
            for slot, card in cards.items()
            if card.state == "waiting"
            and card.number == number + 1
            and (slot == self.slot or self._quiet.get(slot, 0.0) <= self.silent_s)
        ]
        left: dict[str, str] = {}
        stayed, pending = [], False
        for slot, life in group.members if group else ():
            card = cards.get(slot)
            if why := self._gone(card, life):
                left[str(slot)] = why
            elif slot in ready:
                stayed.append(slot)
            elif waited_s > patience_s:
                left[str(slot)] = "it did not come back in time"
            else:
                pending = True
        if pending or self.slot != self._first(stayed or ready, cards):
            return None
        came = sorted(
            slot
            for slot in ready
            if slot not in stayed and (slot == self.slot or not has_ended(cards[slot]))
        )
        chosen = [*sorted(stayed), *came]
        if not stayed and len(chosen) < self.slots and alone_s < self._join_s:
            return None
        stop = ""
        if len(chosen) < self._min:
            if waited_s < self._join_s:
                return None
            stop = f"{len(chosen)} of at least engine.elastic.min_ranks={self._min} ranks are left"
        members = tuple((slot, cards[slot].life) for slot in chosen)
        return Group(number + 1, members, left, tuple(came), stop)

    def _first(self, slots: Sequence[int], cards: Mapping[int, Card]) -> int | None:
        """Return the first of these whose process is there."""
        alive = (slot for slot in sorted(slots) if slot == self.slot or not has_ended(cards[slot]))
        return next(alive, None)

    def _gone(self, card: Card | None, life: int) -> str:
        """Say why a member of the last group is no longer there; nothing: it may be."""
        if card is None or card.life != life:
            return "its process ended"
        if card.state == "left":
            return card.why
        if card.slot == self.slot:
            return ""
        if self._quiet.get(card.slot, 0.0) > self.silent_s:
            return f"it was silent for {self.silent_s:g} s"
        return "its process ended" if card.state == "in" and has_ended(card) else ""

    def leave(self, why: str, *, end: bool = False) -> bool:
        """Leave for good; with `end` the training is over for all who still wait.

        False: nobody can be told.
        """
        if self._ended.is_set():
            return True
        self._ended.set()
        reached = False
        with suppress(*_STORE_ERRORS):
            if not self.cut:
                self._write(state="left", why=why)
                if end:
                    self._store.set("end", self.secret.seal("end", why))
                self._store.get("number")  # a write alone waits for no answer
                reached = True
        for thread in self._threads:
            thread.join(self.silent_s)
        self._listener.close()
        return reached
