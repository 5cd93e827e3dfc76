"""The bench of frameworks: its figures and model by hand, and how it bears bad peers."""

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skindx.core.cost.collectives import Cost
from skindx.core.errors import UserError
from skindx_bench.frameworks import frameworks, measure
from skindx_bench.frameworks.model import (
    ARMS,
    FrameworkArm,
    StepPoint,
    Traffic,
    fit_link,
    left_out,
    predict,
    stage_errors,
    traffic,
)
from skindx_bench.frameworks.page import notes
from skindx_bench.frameworks.rank import STAGES, Stages
from skindx_bench.frameworks.turns import (
    ArmName,
    Case,
    Config,
    FrameworkTurns,
    Opening,
    Turn,
    equal,
    figures_of,
    loss_difference,
    parts_of,
    speed_ups,
    turn_of,
)
from skindx_bench.harness import environments
from skindx_bench.harness.environments import NotInstalledError, PeerEnvironment
from skindx_bench.subjects import run_bench

SUPPORT = Path(__file__).parent / "support"


def test_an_iteration_is_the_sum_of_its_stages_but_for_what_lies_between() -> None:
    stages = Stages()
    stages.add("forward", 1.0, 1.5)
    stages.add("backward", 1.6, 2.6)
    stages.add("forward", 3.0, 3.25)
    assert stages.seconds == pytest.approx({"forward": 0.75, "backward": 1.0})
    fast = {"seconds": 2.0, "stages": {"forward": 2.0}, "peak_mb": 10.0, "losses": [1.0, 3.0]}
    slow = {"seconds": 4.0, "stages": {"forward": 3.0}, "peak_mb": 30.0, "losses": [3.0, 5.0]}
    assert turn_of([fast, slow]) == Turn(4.0, {"forward": 2.5}, 0.75, 20.0, (2.0, 4.0))


def test_a_turn_in_which_a_rank_waited_between_two_stages_is_named() -> None:
    found = _found({"plain": 4.0}, {})
    case = next(iter(found.turns))
    found.turns[case][0] = replace(found.turns[case][0], stages_share=0.8)
    figures = figures_of(CONFIG, found, 2)
    assert figures["stages_difference"].value == pytest.approx(0.01)  # the median of the turns
    text = " ".join(notes(CONFIG, found, None, ()))
    assert "In 1 of 18 turns" in text
    assert "20 % at most" in text


def test_losses_differ_by_the_worst_step() -> None:
    assert loss_difference((2.0, 1.0), (2.0, 1.25)) == pytest.approx(0.2)
    assert loss_difference((2.0, math.nan), (2.0, 1.0)) == math.inf
    with pytest.raises(ValueError, match="longer"):
        loss_difference((1.0,), (1.0, 1.0))


CONFIG = Config(
    arms=("plain", "ddp", "jax", "skindx dense", "skindx fused", "skindx gtopk"),
    networks=("alexnet", "resnet50"),
    ranks=2,
    fewer_ranks=(1,),
    batch=4,
)


def _found(steps: dict[str, float], losses: dict[str, tuple[float, ...]]) -> FrameworkTurns:
    """Return turns in which an arm takes so many seconds with 2 ranks, and half alone."""
    found = FrameworkTurns(layers={"alexnet": [[(1000,)]], "resnet50": [[(2000,)]]})
    for arm, seconds in steps.items():
        for network in CONFIG.networks:
            for ranks, batch, share in ((2, 4, 1.0), (1, 4, 0.5), (1, 8, 0.75)):
                case, taken = Case(arm, network, ranks, batch), share * seconds
                stages = {"forward": 0.4 * taken, "backward": 0.59 * taken}
                turns = [Turn(taken * more, stages, 0.99, 100, ()) for more in (0.9, 1.0, 1.1)]
                found.turns[case] = turns
                found.losses[case] = losses.get(arm, (2.0, 1.0))
                found.openings[case] = Opening(8.0, 100.0)
    return found


STEPS = {"plain": 4.0, "ddp": 2.2, "jax": 1.0, "skindx dense": 3.0, "skindx fused": 2.0}


def test_ours_is_compared_with_the_fastest_whose_losses_are_equal() -> None:
    steps = STEPS | {"skindx gtopk": 0.5}
    figures = figures_of(CONFIG, _found(steps, {"jax": (2.0, 1.1)}), 2)
    assert figures["skindx_over_best"].value == pytest.approx(1.1)  # ddp: jax computes otherwise
    assert "alexnet: skindx_over_jax" not in figures
    assert figures["loss_difference"].value == pytest.approx(0.1)
    # A lossy exchange is the fastest, and changes nothing of that.
    assert figures["alexnet: lossy gtopk_over_best"].value == pytest.approx(4.4)
    figures = figures_of(CONFIG, _found(steps, {}), 2)
    assert figures["skindx_over_best"].value == pytest.approx(0.5)  # said as it is
    assert figures["alexnet: skindx_over_ddp"].value == pytest.approx(1.1)
    assert figures["stages_difference"].value == pytest.approx(0.01)


def test_an_arm_that_failed_is_compared_with_nothing() -> None:
    found = _found(STEPS, {})
    found.missing["jax"] = "rank 0 ended: out of memory"
    figures = figures_of(CONFIG, found, 2)
    assert figures["skindx_over_best"].value == pytest.approx(1.1)
    parts = parts_of(CONFIG, found, 2)
    assert parts["jax"]["why"] == "rank 0 ended: out of memory"
    assert parts["alexnet, jax"]["status"] == "partial"
    assert parts["alexnet, ddp"]["first_step_s"] == 8.0


def test_speed_ups_by_hand() -> None:
    found = _found(STEPS, {})
    # 2 t(1) / t(2) at one batch a rank; t(1) / t(2) at one batch in all.
    found_speed = speed_ups(CONFIG, found, Case("ddp", "alexnet", 2, 4))
    assert found_speed["weak"] == pytest.approx({"1": 1.0, "2": 1.0})
    assert found_speed["strong"] == pytest.approx({"1": 1.0, "2": 0.75})


def test_without_the_reference_nothing_is_called_unequal() -> None:
    found = _found({"ddp": 1.0, "skindx gtopk": 1.0}, {})
    assert equal(CONFIG, found, Case("ddp", "alexnet", 2, 4))
    assert not equal(CONFIG, found, Case("skindx gtopk", "alexnet", 2, 4))
    assert "loss_difference" not in figures_of(CONFIG, found, 2)


ALONE = {"read": 0.01, "copy": 0.01, "forward": 0.1, "backward": 0.2, "update": 0.02}
WIRE_S = 8e-9
"""Of a byte, at 1 Gbit/s."""


def _point(name: str, tensors: int, mb: float, ranks: int, link: Cost, *, hides: bool) -> StepPoint:
    weights = int(mb * 1e6 / 4 / tensors)
    sent = traffic("buckets" if hides else "tensors", [[(weights,)]] * tensors, ranks)
    point = StepPoint(name, ranks, sent, 1.0, ALONE)
    return replace(point, step_s=sum(predict(point, link, 2, hides=hides).values()))


def test_the_model_by_hand() -> None:
    link = Cost(0.001, 1e-8)
    sent = Traffic(6, 1.5e8, 6, 3e7)
    point = StepPoint("net", 4, sent, 1.0, ALONE)
    found = predict(point, link, 2, hides=False)
    assert found["forward"] == pytest.approx(0.2)  # four ranks on two cores
    assert found["communicate"] == pytest.approx(6 * 0.001 + 1.5e8 * 1e-8)
    # Backward hides 0.4 s of it.
    assert predict(point, link, 2, hides=True)["communicate"] == pytest.approx(1.106)
    small = replace(point, traffic=Traffic(6, 1e6, 6, 1e6))
    assert predict(small, link, 2, hides=True)["communicate"] == pytest.approx(0.006 + 0.01)
    # What an exchange computes on one rank alone is added, for all ranks.
    local = replace(point, alone={**ALONE, "communicate": 0.05})
    assert predict(local, link, 2, hides=False)["communicate"] == pytest.approx(0.1 + 1.506)


def test_what_is_sent_by_hand() -> None:
    """Four ranks: a ring takes six rounds, in which a rank sends one and a half times all bytes."""
    layers = [[(3000, 1000), (1000,)], [(7000, 1000)]]  # backward meets the last layer first
    total = 4 * 10_001_000
    assert traffic("whole", layers, 4) == Traffic(6, 1.5 * total, 6, 1.5 * total)
    assert traffic("tensors", layers, 4) == Traffic(18, 1.5 * total, 6, 1.5 * 12_000_000)
    # 28 MB close the first bucket, which wants 1 MB; 12 MB are the second one.
    assert traffic("buckets", layers, 4) == Traffic(12, 1.5 * total, 6, 1.5 * 12_004_000)
    # Both layers are large: each is gathered twice and scattered once, three rounds each time.
    assert traffic("shards", layers, 4) == Traffic(24, 1.5 * 1.5 * total, 3, 0)
    # The factors of 200 images halve the bytes of the larger matrix, and not of the smaller one.
    others = 1.5 * 12_004_000
    assert traffic("factors", layers, 4, batch=200) == Traffic(
        9, others + 3 * 4 * 200 * 8000, 6, others
    )
    k = 10_001
    assert traffic("sparse", layers, 4) == Traffic(2, 2 * 8 * k, 2, 2 * 8 * k)
    assert traffic("whole", layers, 1).volume == 0


@pytest.mark.parametrize("hides", [False, True])
def test_the_model_predicts_a_network_that_it_was_not_fitted_to(hides: bool) -> None:
    link = Cost(0.003, 1.3e-8)
    points = [
        _point(name, tensors, mb, ranks, link, hides=hides)
        for name, tensors, mb in (("a", 10, 20), ("b", 100, 40), ("c", 30, 100))
        for ranks in (2, 4)
    ]
    predicted = left_out(points, 2, WIRE_S, hides=hides)
    assert [one.point for one in predicted] == points
    assert max(abs(one.error) for one in predicted) < 0.06
    measured = [predict(point, link, 2, hides=hides) for point in points]
    errors = stage_errors(predicted, measured)
    assert errors["forward"] == 0
    assert 0 <= errors["communicate"] < 0.06
    assert left_out(points[:2], 2, WIRE_S, hides=hides) == []  # no other network
    assert stage_errors(predicted[:1], [{"compiled": 1.0}]) == {}


def test_many_small_messages_are_no_slow_link() -> None:
    """A network of 158 small tensors says nothing bad of how one of 16 large ones is sent."""
    link = Cost(0.0018, 1.1e-8)
    small = _point("mobilenetv2", 158, 9, 4, link, hides=False)
    large = _point("alexnet", 16, 81, 4, link, hides=False)
    (predicted,) = [
        one for one in left_out([small, large], 2, WIRE_S, hides=False) if one.point == large
    ]
    assert abs(predicted.error) < 0.25


@settings(max_examples=5)
@given(slower=st.floats(1.0, 20.0))
def test_a_fitted_link_explains_its_points(slower: float) -> None:
    link = Cost(0.0, WIRE_S * slower)
    points = [_point("a", 4, mb, 4, link, hides=False) for mb in (10, 100)]
    fitted = fit_link(points, 2, WIRE_S, hides=False)
    for point in points:
        taken = sum(predict(point, fitted, 2, hides=False).values())
        assert taken == pytest.approx(point.step_s, rel=0.05)


def test_every_arm_can_be_asked_for_and_every_peer_has_a_lock() -> None:
    assert set(ArmName.__args__) == set(ARMS) == set(Config().arms)
    for arm in ARMS.values():
        if arm.environment:
            needs = environments.ENVIRONMENTS[arm.environment].needs
            assert isinstance(needs, Path)
            names = needs.with_suffix(".in").read_text().split("\n")
            text = needs.read_text()
            for name in names:
                assert not name or name.startswith("#") or f"\n{name}==" in text
            assert text.count("--hash=sha256:") >= text.count("==")


def test_a_size_that_does_not_fit_is_one_sentence(lab_here: None) -> None:
    with pytest.raises(UserError, match="fewer_ranks=3 does not divide ranks=4"):
        frameworks.run(Config(fewer_ranks=(3,)))
    with pytest.raises(UserError, match=r"side=32: the images are too small .*alexnet"):
        frameworks.run(Config(side=32, ranks=1, fewer_ranks=()))
    with pytest.raises(UserError, match="arms"):
        Config.load(None, ["arms=[horovod]"])


def test_a_missing_tool_is_one_sentence(lab_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    which = frameworks.shutil.which
    absent = lambda tool: None if tool == "setpriv" else which(tool)  # noqa: E731
    monkeypatch.setattr(frameworks.shutil, "which", absent)
    with pytest.raises(UserError, match=r"by setpriv, .*install util-linux"):
        frameworks.run(Config())


def test_an_environment_is_made_once_and_has_our_source_alone(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    lock.write_text("# nothing\n")
    environment = PeerEnvironment("bare", lock, has_source=True)
    python = environment.make(tmp_path)
    script = (
        "import sys, skindx_bench.frameworks.graph, skindx_bench.harness.answering\n"
        "print([name for name in ('torch', 'numpy', 'pydantic') if name in sys.modules])"
    )
    said = subprocess.run(
        [python, "-c", script], check=False, capture_output=True, text=True, cwd="/"
    )
    assert said.stdout.strip() == "[]", said.stderr
    (python.parent.parent / "mine").touch()
    made = python.parent.parent / "skindx-environment.txt"
    first = made.stat().st_mtime_ns
    assert environment.make(tmp_path) == python
    assert made.stat().st_mtime_ns == first
    lock.write_text("# other\n")
    environment.make(tmp_path)
    assert made.stat().st_mtime_ns > first
    assert (python.parent.parent / "mine").exists()


def test_an_environment_that_cannot_be_installed_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    environment = PeerEnvironment("odd", ("skindx-no-such-package-at-all",))
    with pytest.raises(NotInstalledError, match=r"odd could not .*no-such-package"):
        environment.make(tmp_path)
    assert not (tmp_path / "odd" / "skindx-environment.txt").exists()


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch, lab_here: None) -> None:
    """Let arms do nothing, so that only the bench is at work."""
    arm = FrameworkArm("idle_framework", options={})
    fake = {
        "plain": replace(arm, alone=True),
        "ddp": arm,
        "fsdp2": replace(arm, options={"fails": 2, "how": "raise"}),
        "deepspeed": replace(arm, options={"fails": 1, "how": "kill"}),
        "jax": replace(arm, environment="jax"),
    }
    for name, one in fake.items():  # in every module that has imported the table
        monkeypatch.setitem(ARMS, name, one)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SUPPORT), *sys.path]))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_NO_CACHE", "1")


IDLE = (
    "networks=[alexnet]",
    "ranks=2",
    "fewer_ranks=[1]",
    "batch=2",
    "shrink=16",
    "rounds=2",
    "steps=1",
    "loss_steps=2",
)


def test_bad_peers_are_left_out_with_a_sentence_and_the_others_stay(
    idle: None, tmp_path: Path
) -> None:
    file, page = tmp_path / "frameworks.json", tmp_path / "page.html"
    sets = (*IDLE, "arms=[plain, ddp, fsdp2, deepspeed, jax]", f"environments={tmp_path}")
    run_bench("frameworks", file, sets, html=page)
    written = json.loads(file.read_text())
    parts = written["parts"]
    assert "no such kernel" in parts["fsdp2"]["why"]  # the last line of its traceback
    assert parts["deepspeed"]["why"].startswith("rank 1 was killed by SIGKILL")
    assert parts["jax"]["why"].startswith("jax could not be installed")
    assert parts["alexnet, ddp"]["status"] == "measured"
    assert parts["alexnet, ddp"]["memory_mb"] > 10
    assert parts["alexnet, ddp"]["first_step_s"] > 0.05
    assert parts["alexnet, ddp"]["loss_difference"] == pytest.approx(0, abs=1e-9)
    assert set(parts["alexnet, ddp"]["speed_ups"]["weak"]) == {"1", "2"}
    assert any(note.startswith("Left out: fsdp2 (rank ") for note in written["notes"])
    assert any(note.startswith("Load before the run") for note in written["notes"])
    assert "partial" not in written
    assert "alexnet, ddp" in page.read_text()


def test_ctrl_c_keeps_the_figures_so_far(
    idle: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = measure.Measurement._turn

    def turn(self, ranks, arm, case, *, first) -> None:
        begun(self, ranks, arm, case, first=first)
        if len(self.found.turns.get(Case("ddp", "alexnet", 2, 2), ())) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(measure.Measurement, "_turn", turn)
    file = tmp_path / "frameworks.json"
    run_bench("frameworks", file, (*IDLE, "arms=[plain, ddp]"))
    written = json.loads(file.read_text())
    assert written["partial"].startswith("stopped after ")
    assert written["figures"]["alexnet, ddp, 2 x 2 images"]["n"] == 2


def test_a_run_in_parts_measures_nothing_twice(idle: None, tmp_path: Path) -> None:
    sets = [*IDLE, f"kept={tmp_path / 'kept.json'}", "opening=false"]
    run_bench("frameworks", None, [*sets, "arms=[plain]"])
    before = json.loads((tmp_path / "kept.json").read_text())
    run_bench("frameworks", tmp_path / "both.json", [*sets, "arms=[ddp]"])
    after = json.loads((tmp_path / "kept.json").read_text())
    assert [row for row in after["cases"] if row["case"][0] == "plain"] == before["cases"]
    written = json.loads((tmp_path / "both.json").read_text())
    assert {"alexnet, plain", "alexnet, ddp"} <= written["parts"].keys()
    assert written["parts"]["alexnet, ddp"]["loss_difference"] is not None
    assert any(note.startswith("Measured in 2 parts") for note in written["notes"])
    # All is there: nothing is started, and no arm is left out for what it cannot do.
    again = run_bench("frameworks", None, [*sets, "arms=[plain, ddp]"])
    assert again.figures.keys() == written["figures"].keys()
    with pytest.raises(UserError, match="was measured with batch=2 and not 3"):
        run_bench("frameworks", None, [*sets, "batch=3"])
    (tmp_path / "kept.json").write_text('{"cases": 3}')
    with pytest.raises(UserError, match="is no file of bench frameworks"):
        run_bench("frameworks", None, sets)


@pytest.mark.lab
@pytest.mark.distributed
def test_the_smallest_bench_trains_alike_in_all_its_arms(lab_here: None, tmp_path: Path) -> None:
    file = tmp_path / "frameworks.json"
    run_bench("frameworks", file, smallest=True)
    written = json.loads(file.read_text())
    ours = written["parts"]["alexnet, skindx dense"]
    assert ours["loss_difference"] < 1e-5
    assert set(ours["stages"]) == set(STAGES)
    assert 0.5 < ours["stages_over_step"] <= 1  # no moment is counted twice
    assert ours["memory_mb"] is None  # without an opening of its own


@pytest.mark.lab
@pytest.mark.long
@pytest.mark.distributed
def test_other_frameworks_train_alike_on_every_network(lab_here: None, tmp_path: Path) -> None:
    folder = environments.cache_folder()
    if not all(
        environments.ENVIRONMENTS[name].python(folder).exists()
        for name in ("fabric", "jax", "tensorflow")
    ):
        pytest.skip(f"no environments in {folder}; `skindx bench frameworks` makes them")
    file = tmp_path / "frameworks.json"
    named = "[alexnet, googlenet, resnet50, mobilenetv2]"
    sets = (f"networks={named}", "arms=[plain, fsdp2, fabric, jax, tensorflow]", "loss_steps=4")
    run_bench("frameworks", file, (*sets, "batch=4"), smallest=True)
    written = json.loads(file.read_text())
    assert len(written["parts"]) == 4 * 5
    assert written["figures"]["loss_difference"]["value"] < 1e-4
