"""Members whose optimizer or preconditioner needs whole layers, in a plan."""

import pytest
from some_plans import cluster, profile, profiles

from skindx.core.errors import UserError
from skindx_methods.plan.choices import PlannedMember, Workload
from skindx_methods.plan.estimate import Machine
from skindx_methods.plan.plan import make
from skindx_methods.plan.search import PlanLimits, search

OWN = profile()


def test_a_preconditioner_is_planned_where_ranks_have_whole_layers() -> None:
    work = Workload((PlannedMember("m", OWN, 32, epochs=1, images=320, preconditioned=True),))
    machine = Machine(profiles(OWN), cluster(4))
    outcomes = make(work, machine, PlanLimits()).search_result.every
    names = {outcome.choice.strategy.name for outcome in outcomes}
    assert "dense" in names
    assert not {"zero-1", "zero-2", "zero-3", "owt"} & names
    with pytest.raises(UserError, match=r"whole layers, which zero-1 shares"):
        search(work, machine, PlanLimits(strategy="zero-1"))


def test_optimizers_that_go_by_the_norms_of_layers_are_planned_without_zero() -> None:
    work = Workload((PlannedMember("m", OWN, 32, epochs=1, images=320, layer_norms=True),))
    machine = Machine(profiles(OWN), cluster(4))
    outcomes = make(work, machine, PlanLimits()).search_result.every
    names = {outcome.choice.strategy.name for outcome in outcomes}
    assert "dense" in names
    assert not {"zero-1", "zero-2", "zero-3", "owt"} & names
    with pytest.raises(UserError, match="norms of layers, which zero-1 mixes"):
        search(work, machine, PlanLimits(strategy="zero-1"))


def test_muon_is_planned_where_ranks_have_whole_layers() -> None:
    work = Workload((PlannedMember("m", OWN, 32, epochs=1, images=320, matrices=True),))
    machine = Machine(profiles(OWN), cluster(4))
    outcomes = make(work, machine, PlanLimits()).search_result.every
    names = {outcome.choice.strategy.name for outcome in outcomes}
    assert "dense" in names
    assert not {"zero-1", "zero-2", "zero-3", "owt"} & names
    for name in ("zero-2", "owt"):
        with pytest.raises(UserError, match=f"muon works on whole layers, which {name} shares out"):
            search(work, machine, PlanLimits(strategy=name))


def test_members_that_need_whole_layers_are_planned_without_split_ones() -> None:
    work = Workload((PlannedMember("m", OWN, 32, epochs=1, images=320, whole_layers=True),))
    machine = Machine(profiles(OWN), cluster(4))
    names = {
        outcome.choice.strategy.name
        for outcome in make(work, machine, PlanLimits()).search_result.every
    }
    assert "zero-1" in names
    assert not {"owt"} & names
    said = "fp16 and compiled networks need whole layers, which owt shares out"
    with pytest.raises(UserError, match=said):
        search(work, machine, PlanLimits(strategy="owt"))
