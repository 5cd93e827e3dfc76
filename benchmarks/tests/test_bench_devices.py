"""Devices: counted operations, a fake accelerator, labels of joules, what is kept after Ctrl-C."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from skindx.core.errors import UserError
from skindx.energy import Energy, EnergyMeter
from skindx_bench.devices import devices, measure
from skindx_bench.devices.figures import Machine, summarise
from skindx_bench.devices.measure import (
    Accelerator,
    Case,
    Measured,
    Processor,
    TooSlowError,
    Work,
    open_device,
)
from skindx_bench.devices.networks import (
    DeepSpeech2,
    TwoLayerLstm,
    deep_speech_flops,
    lstm_flops,
    networks,
)
from skindx_bench.devices.operators import OPERATORS
from skindx_bench.devices.power_model import CALIBRATED
from skindx_bench.subjects import run_bench

CPU = torch.device("cpu")
TINY = [*devices.SMALLEST, "device=cpu"]


class Fake:
    """An accelerator whose work ends when it is awaited, as a GPU's does."""

    kind, name, torch = "cuda", "Fake 1000", CPU

    def __init__(self) -> None:
        self.awaited = 0

    def synchronize(self) -> None:
        self.awaited += 1

    def clock_mhz(self) -> float | None:
        return None


class Steady:
    """A counter of a machine that draws 100 W."""

    name, range_j = "steady", 0.0

    def read_j(self) -> float:
        return 100 * time.monotonic()


def steady() -> EnergyMeter:
    return EnergyMeter([Steady()])


def counted(module: torch.nn.Module, inputs: torch.Tensor) -> float:
    """Count the operations of a forward pass on the CPU, where recurrent layers are products."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module.eval()(inputs)
    return float(counter.get_total_flops())


@pytest.mark.parametrize("name", ["gemm", "convolution", "attention", "lstm-cell"])
def test_operations_of_an_operator_are_those_that_torch_counts(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    work = OPERATORS[name](16, "fp32", "inference", CPU)
    with FlopCounterMode(display=False) as counter:
        work.run()
    assert counter.get_total_flops() == work.flops
    if name != "attention":  # its backward pass computes the forward pass once more
        trained = OPERATORS[name](16, "fp32", "training", CPU)
        with FlopCounterMode(display=False) as counter:
            trained.run()
        assert counter.get_total_flops() == trained.flops


def test_operations_of_recurrent_networks_by_hand() -> None:
    # Two layers, 3 steps, 4 gates of width 2 from 2 inputs and 2 states; a head of 10 classes.
    assert lstm_flops(2, 3) == 2 * 3 * (2 * 4 * 2 * (2 + 2)) + 2 * 2 * 10
    model = DeepSpeech2(width=4, bands=161)
    frames = torch.zeros(1, 1, 161, 20)
    assert model(frames).shape == (1, 10, 29)
    assert model.features == model.recurrent.input_size == 32 * 41
    assert deep_speech_flops(4, 20) == counted(model, frames)
    assert TwoLayerLstm(2)(torch.zeros(1, 3, 2)).shape == (1, 10)


def test_every_network_trains_a_step_on_its_own_input() -> None:
    for name, network in networks(2, shrink=32).items():
        if name != "resnet50":
            out = network.build()(torch.randn(2, *network.shape))
            assert torch.isfinite(network.loss(out)), name
        assert network.flops() > 0


def test_work_on_an_accelerator_is_awaited_before_the_clock_stops() -> None:
    fake, done = Fake(), []
    case = Case(
        "x", "fp32", "inference", "operator", lambda device: Work(lambda: done.append(1), 3, 6.0)
    )
    found = measure.measure(case, fake, rounds=3, least_s=1e-9, meter=steady)
    assert len(found.seconds) == 3
    # Before and after each of: warming up, trying, rounds.
    assert fake.awaited % 2 == 0
    assert fake.awaited >= 2 * 5
    assert found.rates(6.0) == [6.0 * found.repeats / elapsed for elapsed in found.seconds]


@pytest.mark.parametrize("slow", ["forward", "backward"])
def test_a_call_that_is_too_slow_is_interrupted(slow: str) -> None:
    """Also inside `backward`, which is a single call for Python."""
    calls: dict[str, int] = {"forward": 0, "backward": 0}

    class Wait(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return _wait("forward", x)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            assert len(ctx.saved_tensors) == 1
            return _wait("backward", gradients[0])

    def _wait(which: str, x: torch.Tensor) -> torch.Tensor:
        calls[which] += 1
        time.sleep(0.01 if which == slow else 0)
        return x * 1

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = Wait.apply(x)
            return found

    network = torch.nn.Sequential(*(Layer() for _ in range(500)))
    inputs = torch.ones(1, requires_grad=True)
    case = Case(
        "x", "fp16", "training", "network", lambda _: Work(lambda: network(inputs).backward(), 1, 1)
    )
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TooSlowError, match=r"more than most_s = 0\.3 s"):
        measure.measure(case, Fake(), 2, 1e-9, steady, most_s=0.3)
    assert 0 < calls[slow] < 500
    assert calls["backward"] == 0 or slow == "backward"
    # The timer does not outlive the limit.
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) == before


def test_measured_joules_and_those_above_idle_by_hand() -> None:
    case = Case(
        "gemm-8", "fp32", "inference", "operator", lambda device: Work(lambda: None, 4, 1e9)
    )
    read = Energy("measured", 300.0, sensors=("RAPL package-0",))
    found = Measured(case, 4, 1e9, 2e9, 5, [2.0, 2.0], [read, read], {"marks": ["noisy"]})
    machine = Machine(Fake(), 50.0, read, 0.1, None)
    figures, parts = summarise([found], machine)
    # 5 calls of 4 samples in 2 s and 300 J, of which 2 s of 50 W are idle.
    expected = {
        "samples": (10.0, "samples/s"),
        "arithmetic": (2.5, "GFLOP/s"),
        "memory": (5.0, "GB/s"),
        "power": (150.0, "W"),
        "energy": (15.0, "J/sample"),
        "energy above idle": (10.0, "J/sample"),
    }
    shown = {
        key: (figures[f"{case.key}: {key}"].value, figures[f"{case.key}: {key}"].unit)
        for key in expected
    }
    assert shown == expected
    assert figures["peak fp32"].value == 2.5
    assert parts[case.key]["energy"] == "measured"
    assert parts[case.key]["marks"] == ["noisy"]
    assert "idle 50.0 W" in machine.energy_sentence()


def test_one_round_without_joules_makes_the_figure_unavailable() -> None:
    case = Case(
        "gemm-8", "fp32", "inference", "operator", lambda device: Work(lambda: None, 4, 1e9)
    )
    rounds = [Energy("measured", 300.0), Energy("unavailable", why="went backwards")]
    found = Measured(case, 4, 1e9, 2e9, 5, [2.0, 2.0], rounds)
    figures, parts = summarise([found], Machine(Fake(), None, rounds[1], None, None))
    assert f"{case.key}: energy" not in figures
    assert parts[case.key]["energy"] == "unavailable"
    assert parts[case.key]["energy_why"] == "went backwards"


def test_an_accelerator_is_named_in_the_result() -> None:
    sets = [*TINY, "sizes=[]", "networks=[lstm-2]", "modes=[inference]"]
    result = devices.run(devices.Config.load(None, sets), Fake(), steady)
    assert result.hardware["accelerator"] == result.hardware["device"] == "Fake 1000"


def test_without_a_counter_joules_are_unavailable_or_modelled_never_zero() -> None:
    result = devices.run(devices.Config.load(None, TINY), Processor(), lambda: EnergyMeter([]))
    assert not any("energy" in key or "power" in key for key in result.figures)
    assert {part["energy"] for part in result.parts.values()} == {"unavailable"}
    assert any("Energy: unavailable" in note for note in result.notes)
    given = devices.Config.load(None, [*TINY, "full_w=200"])
    result = devices.run(given, Processor(), lambda: EnergyMeter([]))
    key = "gemm-16, fp32, inference"
    # The fastest product uses the whole peak, by definition, but for the spread of its rounds.
    assert result.parts[key]["energy"] in ("modelled", "unavailable")
    assert not any("above idle" in key for key in result.figures)
    for key, part in result.parts.items():
        assert (f"{key}: energy" in result.figures) == (part["energy"] == "modelled")


def test_the_model_in_the_code_is_the_one_that_was_fitted(pytestconfig: pytest.Config) -> None:
    file = pytestconfig.rootpath / "docs/measured/energy.json"
    fitted = json.loads(file.read_text())["models"]["power"]
    assert CALIBRATED.coefficients == pytest.approx(fitted["coefficients"], abs=1e-4)
    assert CALIBRATED.half_width == pytest.approx(fitted["half_width"], abs=1e-4)
    assert CALIBRATED.arithmetic == pytest.approx(fitted["arithmetic"], abs=1e-4)
    assert CALIBRATED.energy(250, 1, 0.0, 1.0).source == "unavailable"


def test_what_a_device_does_not_have_is_named_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> Work:
        raise RuntimeError('"addmm" not implemented for Half\nmore')

    monkeypatch.setitem(OPERATORS, "convolution", refuse)
    result = devices.run(devices.Config.load(None, TINY), Fake(), steady)
    assert "convolution-16, fp32, inference: samples" not in result.figures
    assert "attention-16, fp32, inference: samples" in result.figures
    assert any(
        'Not on this device, 2: convolution-16, fp32, inference ("addmm"' in note
        for note in result.notes
    )


def test_ctrl_c_keeps_the_figures_so_far_and_marks_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[str] = []
    original = measure.measure

    def stopping(case: Case, *rest: object) -> measure.Measured:
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(case.key)
        return original(case, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(devices, "measure", stopping)
    result = devices.run(devices.Config.load(None, TINY), Fake(), steady)
    assert result.partial.startswith("stopped after 4 of")
    assert "gemm-16, fp32, inference: samples" in result.figures
    assert done == [
        *("memory copy, fp32, inference", "memory triad, fp32, inference"),
        *("gemm-16, fp32, inference", "gemm-16, fp32, training"),
    ]
    result.to_json(tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text())["partial"] == result.partial


def test_what_is_too_slow_without_gradients_is_not_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []
    original = measure.measure

    def slow(case: Case, *rest: object) -> measure.Measured:
        tried.append(case.key)
        if case.key == "gemm-16, fp32, inference":
            raise TooSlowError("one call takes more than most_s = 20 s")
        return original(case, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(devices, "measure", slow)
    result = devices.run(devices.Config.load(None, TINY), Fake(), steady)
    assert "gemm-16, fp32, training" not in tried
    assert "lstm-2, fp32, training" in tried
    assert any("gemm-16, fp32, training (its inference is too slow" in n for n in result.notes)


def test_a_device_that_slows_down_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, int] = {}
    original = measure.measure

    def tiring(case: Case, *rest: object) -> measure.Measured:
        found = original(case, *rest)  # type: ignore[arg-type]
        seen[case.key] = seen.get(case.key, 0) + 1
        found.repeats, found.seconds = 1, [float(seen[case.key])] * len(found.seconds)
        return found

    monkeypatch.setattr(devices, "measure", tiring)
    result = devices.run(devices.Config.load(None, TINY), Fake(), steady)
    # The training has thrice the operations of the product alone: it is repeated.
    assert [key for key, times in seen.items() if times == 2] == ["gemm-16, fp32, training"]
    assert result.figures["end_over_start"].value == 0.5
    assert any("0.50 times as fast at the end" in note for note in result.notes)


def test_after_the_limit_nothing_new_is_begun() -> None:
    result = devices.run(devices.Config.load(None, [*TINY, "limit_s=1e-9"]), Fake(), steady)
    assert result.partial.startswith("limit_s is over after 0 of")
    assert not result.figures


def test_members_of_a_bundle_and_of_a_config_are_measured(tmp_path: Path) -> None:
    from skindx_bench.serve.server import random_bundle

    bundle = random_bundle(
        tmp_path / "bundle", ["test_resnet"], side=64, detector_side=64, gallery=8
    ).path
    config = tmp_path / "config.yaml"
    config.write_text(
        "members: [{name: a, model: test_resnet, preprocess: {size: 64}}]\nrecipe: {batch: 4}\n"
    )
    sets = [*TINY, "sizes=[]", "networks=[]", f"bundle={bundle}", f"config={config}"]
    result = devices.run(devices.Config.load(None, sets), Processor(), steady)
    own = result.parts["bundle test_resnet, fp32, inference"]
    assert result.parts["bundle test_resnet, fp32, training"]["flops"] == 3 * own["flops"]
    trained = result.parts["member a, fp32, training"]
    assert own["samples"] == 2  # of `batch`
    assert trained["samples"] == 4
    # The same network: a step of training does three forward passes, of twice as many images.
    assert trained["flops"] / own["flops"] == pytest.approx(6, rel=0.01)


def test_devices_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert open_device("auto").kind == "cpu"
    with pytest.raises(UserError, match="finds no accelerator"):
        open_device("cuda")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    found = open_device("auto")
    assert isinstance(found, Accelerator)
    assert (found.kind, found.name) == ("mps", "MPS")
    assert found.clock_mhz() is None
    with pytest.raises(UserError, match="set device=mps"):
        open_device("xpu")


def test_an_unknown_network_and_a_foreign_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"resnet5 is not known; valid: resnet50"):
        run_bench("devices", None, [*TINY, "networks=[resnet5]"])
    with pytest.raises(UserError, match="does not exist"):
        run_bench("devices", None, [*TINY, f"machines=[{tmp_path / 'x.json'}]"])
