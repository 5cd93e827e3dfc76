"""Who trains: groups that follow one another in a store, decided by threads as by processes."""

import json
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch._C._distributed_c10d import TCPStore

from skindx.core.errors import UserError
from skindx.training.parallel import messages
from skindx.training.parallel.messages import gather_objects
from skindx_methods.elastic import membership as elastic
from skindx_methods.elastic.membership import CutOffError, Group, Membership
from skindx_methods.elastic.run_secret import ForeignError, RunSecret

SILENT_S = 0.6
SECRET = RunSecret("of these tests")


class Store:
    """A store, and the ranks that meet there."""

    def __init__(self) -> None:
        self.server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.members: list[Membership] = []

    def member(self, slot: int, slots: int = 3, **changes: object) -> Membership:
        settings = {"min_ranks": 1, "silent_s": SILENT_S, "identity": {"code": "a"}, "join_s": 0.5}
        settings |= {"secret": SECRET}
        made = Membership(
            ("127.0.0.1", self.server.port),
            slot,
            slots,
            **{**settings, **changes},  # type: ignore[arg-type]
        )
        self.members.append(made)
        return made


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(elastic, "BEAT_S", 0.05)
    made = Store()
    yield made
    for member in made.members:
        member.leave("the test is over")


def _join(members: Sequence[Membership], patience_s: float = 10) -> list[Group | None]:
    """Let all of them join at once."""
    groups: dict[int, Group | None] = {}
    threads = [
        threading.Thread(
            target=lambda n=n, one=one: groups.update({n: one.join(patience_s)}), daemon=True
        )
        for n, one in enumerate(members)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return [groups[number] for number in range(len(members))]


def _slots(group: Group | None) -> list[int]:
    assert group
    return [slot for slot, _ in group.members]


def _wait(until: Callable[[], bool], limit_s: float = 5) -> float:
    began = time.monotonic()
    while not until():
        assert time.monotonic() - began < limit_s
        time.sleep(0.005)
    return time.monotonic() - began


def _end(member: Membership) -> None:
    """End as a killed process does: no heartbeat, and nobody listens."""
    member._ended.set()
    member._listener.close()


def test_all_meet_and_those_left_go_on_at_once(store: Store) -> None:
    ranks = [store.member(slot) for slot in range(3)]
    groups = _join(ranks)
    assert groups == [groups[0]] * 3
    assert (_slots(groups[0]), groups[0] and groups[0].number) == ([0, 1, 2], 1)
    _end(ranks[1])
    began = time.monotonic()
    after = _join([ranks[0], ranks[2]])
    assert time.monotonic() - began < SILENT_S / 2  # its closed door is enough
    assert _slots(after[0]) == [0, 2]
    assert after[0]
    assert after[0].left == {"1": "its process ended"}


def test_a_newcomer_waits_for_the_others_to_leave_their_step(store: Store) -> None:
    ranks = [store.member(slot) for slot in range(3)]
    _join(ranks)
    _end(ranks[2])
    _join(ranks[:2])
    again = store.member(2)
    assert again.life == 2
    joined: list[Group | None] = []
    thread = threading.Thread(target=lambda: joined.append(again.join()))
    thread.start()
    _wait(lambda: ranks[0].newcomer and ranks[1].newcomer)
    assert not joined
    assert not ranks[0].broken
    groups = _join(ranks[:2])
    thread.join(5)
    assert _slots(groups[0]) == [0, 1, 2]
    assert groups[0]
    assert groups[0].came == (2,)
    assert joined == [groups[0]]


def test_a_silent_rank_breaks_the_group_and_comes_back_as_a_newcomer(store: Store) -> None:
    ranks = [store.member(slot) for slot in range(3)]
    _join(ranks)
    shut = threading.Event()
    ranks[0].abort = shut.set
    write, ranks[2]._write = ranks[2]._write, lambda **changes: None  # type: ignore[method-assign]
    took = _wait(lambda: ranks[0].broken and ranks[1].broken)
    assert SILENT_S / 2 < took < 2 * SILENT_S
    assert shut.is_set()
    assert ranks[0].why == "rank 2 is silent"
    after = _join(ranks[:2])
    assert after[0]
    assert after[0].left == {"2": f"it was silent for {SILENT_S:g} s"}
    ranks[2]._write = write  # type: ignore[method-assign]
    _wait(lambda: ranks[2].broken)
    assert _slots(_join(ranks)[2]) == [0, 1, 2]


def test_a_rank_that_is_stuck_in_a_broken_group_ends_and_one_that_computes_does_not(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic, "STUCK_S", 0.5)
    ended: list[int] = []
    monkeypatch.setattr(elastic, "leave_process", ended.append)
    ranks = [store.member(slot) for slot in range(2)]
    _join(ranks)
    _end(ranks[1])
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        sum(range(10_000))
    assert ranks[0].broken
    assert not ended, "it computes, and will notice when it sends"
    _wait(lambda: bool(ended))


def test_a_rank_that_leaves_its_step_takes_the_others_along(store: Store) -> None:
    ranks = [store.member(slot) for slot in range(2)] + [store.member(2)]
    _join(ranks)
    _end(ranks[2])
    thread = threading.Thread(target=ranks[0].join)
    thread.start()
    assert _wait(lambda: ranks[1].broken) < SILENT_S / 2
    assert _slots(ranks[1].join()) == [0, 1]
    thread.join(5)


def test_one_that_leaves_is_named_and_one_that_hangs_is_not_waited_for(store: Store) -> None:
    ranks = [store.member(slot) for slot in range(3)]
    _join(ranks)
    ranks[1].leave("SIGTERM came to it")
    after = _join([ranks[0]], patience_s=0.3)  # rank 2 beats, and never leaves its step
    assert after[0]
    assert after[0].left == {
        "1": "SIGTERM came to it",
        "2": "it did not come back in time",
    }


def test_too_few_ranks_stop_and_the_end_is_told_to_those_who_wait(store: Store) -> None:
    ranks = [store.member(slot, min_ranks=2) for slot in range(3)]
    _join(ranks)
    for rank in ranks[1:]:
        _end(rank)
    group = ranks[0].join()
    assert group
    assert group.stop == ("1 of at least engine.elastic.min_ranks=2 ranks are left")
    late = store.member(1, min_ranks=2)
    ranks[0].leave("all have stopped", end=True)
    assert late.join() is None
    assert late.end == "all have stopped"


def test_another_dataset_is_refused_and_the_others_go_on(store: Store) -> None:
    first = store.member(0, slots=2, identity={"code": "a", "data": "b"})
    with pytest.raises(
        UserError, match=r"rank 1 on .* its data differ from the other ranks; start it again"
    ) as e:
        store.member(1, slots=2, identity={"code": "a", "data": "c"})
    assert "\n" not in str(e.value)
    assert _slots(first.join()) == [0]


def test_another_process_in_its_place_ends_a_rank(store: Store) -> None:
    first = store.member(0, slots=1)
    first.join()
    store.member(0, slots=1)
    _wait(lambda: first.cut)
    with pytest.raises(CutOffError, match="another process has taken its place"):
        first.join()


def test_a_lost_store_cuts_a_rank_off(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    rank = store.member(0, slots=1)
    rank.join()
    shut = threading.Event()
    rank.abort = shut.set
    del store.server
    assert _wait(lambda: rank.cut) < 2 * SILENT_S
    assert shut.is_set()
    with pytest.raises(CutOffError, match="the store cannot be reached"):
        rank.join()


def test_no_store_is_one_sentence() -> None:
    with pytest.raises(
        UserError, match=r"rank 0 cannot connect to the store .*:9 \(.*machine can reach"
    ):
        Membership(
            *(("127.0.0.1", 9), 0, 1),
            min_ranks=1,
            silent_s=1,
            identity={},
            secret=SECRET,
            timeout_s=0.2,
        )


def test_a_stranger_at_the_store_becomes_no_rank(store: Store, tmp_path: Path) -> None:
    """Without the secret, or with another one; what it writes over can end a run, and no more."""
    ranks = [store.member(slot) for slot in range(2)]
    _join(ranks)
    with pytest.raises(UserError, match=r"to another run than rank 2 on .*MASTER_PORT"):
        store.member(2, secret=RunSecret("of another run"))
    card = replace(ranks[1]._card, slot=2, number=2, state="waiting")
    for forged in (json.dumps(asdict(card)), RunSecret("x").seal("card/2", "{}"), "."):
        store.server.set("card/2", forged)
        store.server.set("card/1", forged)  # that rank writes it again
    signed = ranks[1].secret.seal("card/1", json.dumps(asdict(card)))
    store.server.set("card/2", signed)  # a card of another place
    time.sleep(4 * elastic.BEAT_S)
    assert not any(rank.broken or rank.newcomer for rank in ranks)
    store.server.set("number", "7")
    _wait(lambda: all(rank.cut for rank in ranks))
    with pytest.raises(CutOffError, match="does not know the secret of the run has written"):
        ranks[0].join()


def test_the_secret_is_made_once_and_read_by_its_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        first, second = (RunSecret.within(tmp_path / "ranks") for _ in range(2))
    finally:
        os.umask(old)
    assert second.opened("end", first.seal("end", "-")) == "-"
    with pytest.raises(ForeignError):
        second.opened("number", first.seal("end", "-"))
    file = tmp_path / "ranks" / "secret"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    with pytest.raises(
        UserError, match=r"other users of this machine may read .*; delete this file"
    ):
        RunSecret.within(tmp_path / "ranks")


def _strangers() -> list[str]:
    """Prove another secret on each rank, also with a peer that sends a pickle."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    secret = RunSecret(f"of rank {rank}")
    gathers = partial(gather_objects, ranks=2, device=torch.device("cpu"))
    packed, answers = messages.packed, []
    for number, pack in enumerate((pickle.dumps, packed), start=1):
        messages.packed = pack if rank else packed  # type: ignore[assignment]
        try:
            secret.prove(gathers, rank, number)
        except dist.DistError as error:
            answers.append(str(error))
    return answers


@pytest.mark.distributed
def test_a_process_without_the_secret_is_no_rank_of_a_group() -> None:
    said, _ = run_ranks(2, _strangers)
    assert len(said) == 2
    assert all("does not know the secret of the run" in one for one in said)
