"""A rank is killed, hangs, leaves or comes back: the others go on, and all hold the same."""

import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from elastic_ranks import Ranks, elastic_ranks, elastic_settings
from safetensors.torch import load_file

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]

STEPS = [[epoch, step] for epoch in range(2) for step in range(6)]


def _check(ranks: Ranks, *, alike: bool = True) -> dict[tuple[int, int], dict[int, Any]]:
    """Check that every step was taken once by a whole group; return its rows by slot."""
    taken: dict[tuple[int, int], dict[int, Any]] = defaultdict(dict)
    for slot in ranks.processes:
        for row in ranks.steps(slot):
            taken[tuple(row["at"])][slot] = row
    assert [list(at) for at in sorted(taken)] == STEPS
    for at, rows in taken.items():
        assert {row["ranks"] for row in rows.values()} == {len(rows)}, at
        assert sum(row["images"] for row in rows.values()) == 9
        if alike:
            assert len({row["weights"] for row in rows.values()}) == 1, at
    return taken


def test_the_others_go_on_when_one_is_killed_in_a_step(small_dataset: Path, tmp_path: Path) -> None:
    """Each step's images are those of an undisturbed training, and all ranks hold the same."""
    settings = elastic_settings(3)
    with elastic_ranks(tmp_path / "run", small_dataset, settings, {(1, 4): "kill"}) as ranks:
        ranks.start(0, 1, 2)
        assert ranks.join(0, 1, 2) == [0, -signal.SIGKILL, 0]
        taken = _check(ranks)
        assert [len(taken[epoch, step]) for epoch, step in STEPS] == [3] * 3 + [2] * 9
        _, event = ranks.events()
        assert event["left"] == {"1": "its process ended"}
        assert (event["epoch"], event["step"], event["ranks"]) == (1, 3, [0, 2])
        assert event["state_from"] == [0, 2]
        assert event["seconds_since_last_step"] < 3
    weights = load_file(tmp_path / "run" / "members" / "a" / "model.safetensors")
    assert all(bool(value.isfinite().all()) for value in weights.values())
