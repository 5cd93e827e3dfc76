"""`skindx new` expects what `skindx plan` prices for one rank of this machine."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skindx.comm.dense import DenseSettings
from skindx.core.cost.profile import AtBatch, Profile, ProfiledLayer
from skindx.start.first_estimate import TimedSteps
from skindx_methods.plan.choices import Choice, Exchanging, PlannedMember, Workload
from skindx_methods.plan.cluster import Cluster
from skindx_methods.plan.estimate import Machine, estimate, outcome
from skindx_methods.plan.profiles import Profiles

SECONDS = st.floats(0.01, 10)
BYTES = st.one_of(st.just(0), st.integers(10**8, 10**10))


@given(st.data(), st.sampled_from(("cpu", "cuda")), SECONDS, SECONDS, st.floats(0, 2))
def test_a_step_costs_what_a_plan_says(
    data: st.DataObject,
    device: Literal["cpu", "cuda"],
    forward_s: float,
    update_s: float,
    read_s: float,
) -> None:
    batch = data.draw(st.integers(2, 128))
    batches = sorted({max(2, batch // 4), max(2, batch // 2)})  # as `skindx new` times them
    points = [(n, data.draw(SECONDS), data.draw(BYTES)) for n in batches]
    points[-1] = (batches[-1], forward_s + data.draw(SECONDS), data.draw(BYTES))
    images, peaks = data.draw(st.integers(2, 256)), (4000, 8000, 5 * 10**8)
    steps = TimedSteps(device, tuple(points), forward_s, update_s, *peaks)
    backward_s = points[-1][1] - forward_s
    layer = ProfiledLayer(
        name="network", forward_s=forward_s, backward_s=backward_s, parameter_bytes=4000
    )
    profile = Profile(
        name="n",
        batch=batches[-1],
        layers=(layer,),
        at=tuple(AtBatch(batch=n, compute_s=s, peak_bytes=peak) for n, s, peak in points),
        update_s=update_s,
        optimizer_bytes=8000,
        read_s=read_s,
    )
    profiles = Profiles(device=device, base_bytes=5 * 10**8, cores=2, networks=(profile,))
    cluster = Cluster(nodes=1)
    choice = Choice(Exchanging(DenseSettings()), 1, 1, images)
    one = estimate(profile, choice, Machine(profiles, cluster))
    member = PlannedMember("m", profile, images, 1, 3, 500, 70)
    whole = outcome(choice, {"m": one}, Workload((member,)), profiles, cluster)
    step_s = steps.step_s(images, images * read_s / 2)
    assert step_s == pytest.approx(one.step_s, rel=1e-9)
    assert steps.memory_bytes(images) == pytest.approx(one.memory.peak_bytes, rel=1e-9)
    validation_s = 70 * steps.together_s(steps.forward_image_s, read_s / 2)
    expected_s = 3 * (max(1, round(500 / images)) * step_s + validation_s)
    assert expected_s == pytest.approx(whole.seconds, rel=1e-9)
