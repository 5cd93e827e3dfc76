import math
from typing import Any

import pytest
from exchanges import assert_consistent, assert_mean, every_kind, left_alone
from ranks import run_ranks

from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.fused import FusedSettings
from skindx.comm.gtopk import GTopKSettings
from skindx.comm.hierarchical import HierarchicalSettings
from skindx.comm.multicolor import MulticolorSettings
from skindx.comm.powersgd import PowerSGDSettings
from skindx.comm.topk import TopKSettings

FUSED = FusedSettings(bucket_mb=0.001, tune=False)
EXACT = {
    "fused": FUSED,
    "one group": FusedSettings(tune=False, bucket_mb=0.004),
    "hierarchical": HierarchicalSettings(ranks_per_node=2, bucket_mb=0.001, chunks=3),
    "hierarchical, one node": HierarchicalSettings(chunks=2),
    "multicolor": MulticolorSettings(bucket_mb=0.001, chunks=3),
    "multicolor, three": MulticolorSettings(colors=3, chunks=1),
    "topk, all": TopKSettings(density=1, warmup=()),
    "gtopk, all": GTopKSettings(density=1, warmup=()),
}
COMPRESSED = {
    "topk": TopKSettings(density=0.1, warmup=()),
    "gtopk": GTopKSettings(density=0.1, warmup=()),
    "gtopk, warming up": GTopKSettings(density=0.01, warmup=(0.5, 0.1)),
    "powersgd": PowerSGDSettings(rank=2),
}
OTHER = {
    "bf16 wire": FUSED.model_copy(update={"wire": "bf16"}),
    "gtopk, momentum": GTopKSettings(density=0.1, warmup=(), momentum=0.9),
}

pytestmark = pytest.mark.distributed


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(2, marks=pytest.mark.long), 3, 4, pytest.param(8, marks=pytest.mark.long)
    ],
)  # fmt: skip
def group(request: pytest.FixtureRequest) -> tuple[int, list[dict[str, Any]]]:
    """One spawned group of ranks runs every kind, a larger one those that depend on its size."""
    cases = {**EXACT, **COMPRESSED, **OTHER}
    if request.param >= 4:
        cases = {name: cases[name] for name in ("gtopk", "multicolor, three", "hierarchical")}
    return request.param, run_ranks(request.param, every_kind, cases, timeout_s=240)


def test_exact_kinds_give_the_mean(group: tuple[int, list[dict[str, Any]]]) -> None:
    for result in group[1]:
        for name in EXACT.keys() & result.keys():
            assert_mean(name, result[name])


def test_compressed_kinds_lose_no_mass(group: tuple[int, list[dict[str, Any]]]) -> None:
    for result in group[1]:
        for name in COMPRESSED.keys() & result.keys():
            for run in ("plain", "accumulated"):
                assert result[name][run]["dense"] > 1e-3, "nothing was compressed"
                limit = 1e-4 if name == "powersgd" else 3e-6
                assert result[name][run]["identity"] < limit, (name, run)


def test_ranks_agree_also_after_a_pause_and_a_gradient_that_is_not_finite(
    group: tuple[int, list[dict[str, Any]]],
) -> None:
    for result in group[1]:
        for name, runs in result.items():
            assert_consistent(name, runs)


def test_bf16_on_the_wire_is_near(group: tuple[int, list[dict[str, Any]]]) -> None:
    for result in group[1]:
        if "bf16 wire" in result:
            assert 0 < result["bf16 wire"]["plain"]["dense"] < 0.02


def test_counted_bytes_equal_the_formula(group: tuple[int, list[dict[str, Any]]]) -> None:
    world, results = group
    rounds = int(math.log2(world))
    power, extra = 1 << rounds, world - (1 << rounds)
    for rank, result in enumerate(results):
        for name, runs in result.items():
            run, steps = runs["plain"], 3
            size = 4 * run["elements"]
            message = 8 * math.ceil(0.1 * run["elements"])
            if name == "one group":
                expected = steps * round(2 * (world - 1) * size / world)
                assert run["bytes"] == pytest.approx(expected, abs=steps)
            elif name == "bf16 wire":
                assert run["bytes"] == pytest.approx(steps * (world - 1) * size / world, abs=60)
            elif name == "topk":
                assert run["bytes"] == steps * (world - 1) * message
            elif name == "gtopk":
                sent = 1 if rank >= power else rounds + (rank < extra)
                assert run["bytes"] == steps * sent * message
            elif name == "hierarchical" and world % 2 == 0:
                nodes = world // 2
                leads = round(2 * (nodes - 1) * size / nodes) + size
                assert run["bytes"] == pytest.approx(steps * (size if rank % 2 else leads), abs=60)
    if "multicolor" in results[0]:
        # Each tree has P - 1 edges, each used once a way.
        total = sum(result["multicolor"]["plain"]["bytes"] for result in results)
        assert total == 3 * 2 * (world - 1) * 4 * results[0]["multicolor"]["plain"]["elements"]


@pytest.mark.parametrize(
    "settings",
    [
        FUSED,
        *(COMPRESSED[name] for name in ("topk", "gtopk", "powersgd")),
        *(EXACT[name] for name in ("hierarchical", "multicolor")),
    ],
    ids=lambda each: each.kind,
)
def test_the_others_do_not_wait_for_a_rank_that_is_gone(settings: ExchangeSettings) -> None:
    reported = run_ranks(3, left_alone, settings, timeout_s=60)
    assert all(message not in {"", "nobody noticed"} for message in reported[:2])
