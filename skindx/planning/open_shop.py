"""How long it takes to train members that hop between workers: an open shop.

Each member (a job) visits each worker's partition (a machine) once an epoch, in any order. Greedy
list scheduling: an idle worker takes the member that waits with the most work left, ties at random.
"""

import heapq
import random
from collections.abc import Sequence

SPREAD = 0.05
"""Members whose work left differs by less than this share are drawn at random."""


def bound_s(times_MP: Sequence[Sequence[float]]) -> float:
    """Return what no schedule beats: the longest work of one worker, or of one member.

    `times_MP` has the seconds of each member on each worker, of all epochs.
    """
    workers = [sum(column) for column in zip(*times_MP, strict=True)]
    members = [sum(row) for row in times_MP]
    return float(max(*workers, *members))


def choose(left: Sequence[float], rng: random.Random) -> int:
    """Return which of some waiting members to take, by the work that each has left."""
    noisy = [work * (1 + SPREAD * rng.random()) for work in left]
    return max(range(len(noisy)), key=noisy.__getitem__)


def makespan_s(
    times_MP: Sequence[Sequence[float]],
    epochs: int,
    rng: random.Random,
    validation: float = 0.0,
    jitter: float = 0.0,
) -> tuple[float, float]:
    """Simulate the schedule; return its length and the bound of the times that were drawn.

    `times_MP` are the seconds of one epoch, `validation` is the share of them that a member's
    validation takes on each worker after each epoch; each unit's time is drawn within `jitter`.
    """
    members, workers = len(times_MP), len(times_MP[0])
    stages = epochs * (2 if validation else 1)
    shares = [1.0, validation] if validation else [1.0]
    stage, left = [0] * members, [set(range(workers)) for _ in range(members)]
    work = [sum(row) * sum(shares) * epochs for row in times_MP]
    spent_MP = [[0.0] * workers for _ in range(members)]
    waiting, idle = set(range(members)), set(range(workers))
    running: list[tuple[float, float, int, int]] = []
    now = 0.0
    while True:
        for worker in rng.sample(sorted(idle), len(idle)):
            able = [m for m in sorted(waiting) if stage[m] < stages and worker in left[m]]
            if not able:
                continue
            member = able[choose([work[m] for m in able], rng)]
            share = shares[stage[member] % len(shares)]
            mean = times_MP[member][worker] * share
            took = mean * (1 + rng.uniform(-jitter, jitter))
            work[member] -= mean
            spent_MP[member][worker] += took
            left[member].discard(worker)
            waiting.discard(member)
            idle.discard(worker)
            heapq.heappush(running, (now + took, rng.random(), member, worker))
        if not running:
            return now, bound_s(spent_MP)
        now, _, member, worker = heapq.heappop(running)
        waiting.add(member)
        idle.add(worker)
        if not left[member]:
            stage[member], left[member] = stage[member] + 1, set(range(workers))
