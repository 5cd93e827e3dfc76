"""Slices that are killed, moved and gone on with; the commands are stand-ins, the kills are real.

The real commands run at toy size in the last test, which takes minutes.
"""

import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stand_in_commands
from forks import forked

from skindx.core.atomic_files import write_json
from skindx.core.errors import JobError, UserError
from skindx.training.config.run import TrainSettings
from skindx_bench.devices import gpu
from skindx_bench.gpu_release import carried, measured, release, trained
from skindx_bench.gpu_release.carried import INDEX, CarriedState, read_index
from skindx_bench.gpu_release.release import Config, run
from skindx_bench.harness.parts import Outcome
from skindx_bench.subjects import BENCHES
from skindx_bench.train import trainer
from skindx_bench.train.convergence_pairs import Study, arm_settings
from skindx_bench.train.folds import folds_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let stand-ins run instead of trainings; return the file of the steps that they take."""
    file = tmp_path / "trace.txt"
    file.touch()
    start = [sys.executable, "-S", stand_in_commands.__file__]

    def bench(name: str, json_file: Path, sets: Any) -> list[str]:
        given = [f"{key}={value}" for key, value in sets.items()]
        return [*start, name, str(file), "--json", str(json_file), *given]

    def trainer(json_file: Path, sets: Any, **_: Any) -> list[str]:
        return [*start, "trainer", str(file), "--json", str(json_file)]

    monkeypatch.setattr(trained, "bench", bench)

    def training(verb: str, *arguments: Any) -> list[str]:
        return [*start, verb, str(file), *map(str, arguments)]

    monkeypatch.setattr(trained, "training_of", training)
    monkeypatch.setattr(gpu, "trainer_command", trainer)
    return file


def settings(folder: Path, number: int, **more: Any) -> Config:
    return Config(**{"slice": number, "fake": True, "folder": folder, "turns": 2, **more})


def begun(config: Config) -> int:
    """Begin a slice in a fork and return its process id."""
    child = os.fork()
    if not child:
        try:
            run(config)
        finally:
            os._exit(0)
    return child


def kill_when(child: int, ready: Callable[[], bool]) -> None:
    """Kill a process as soon as something is so; it must not have ended by itself before."""
    deadline = time.monotonic() + 90
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def steps(trace: Path) -> list[str]:
    return trace.read_text().splitlines()


def finished(folder: Path, number: int) -> dict[str, Any]:
    return dict(json.loads((folder / f"gpu-release-{number}-fake.json").read_text()))


def moved(here: Path, number: int, there: Path) -> Path:
    """Bring the state alone to another folder, as to another machine."""
    shutil.copytree(here / f"state-{number}", there / f"state-{number}")
    return there


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("number", "at"),
    [(2, "turn-2 begun"), (3, "two-fold0 2"), (3, "one 1"), (4, "lars-seed 2")],
)
def test_a_killed_slice_goes_on_here_and_repeats_one_step_at_most(
    tmp_path: Path, trace: Path, number: int, at: str
) -> None:
    own = settings(tmp_path / "here", number)
    kill_when(begun(own), lambda: at in steps(trace))
    killed_in = steps(trace)[-1]  # the step after `at`, where the kill came late
    assert forked(lambda: run(own)) == [0]
    taken = Counter(steps(trace))
    again = [step for step, count in taken.items() if count > 1]
    assert again in ([], [killed_in])
    assert taken == Counter({**dict.fromkeys(ALL_STEPS[number], 1), **dict.fromkeys(again, 2)})
    written = finished(tmp_path / "here", number)
    assert written["hardware"]["accelerator"] == gpu.FAKE
    assert {"versions", "date", "figures"} <= set(written)
    # The same command once more does nothing.
    before = steps(trace)
    run(own)
    assert steps(trace) == before


TRAINED = {
    3: ["one-fold0", "two-fold0", "one-fold1", "two-fold1", "one", "two"],
    4: ["lars-0.1", "lars-0.2", "dense-seed", "lars-seed", "lamb-seed"],
}
ALL_STEPS = {
    2: [f"turn-{turn} {what}" for turn in (1, 2) for what in ("begun", "ended")],
    **{
        number: [f"{name} {step}" for name in names for step in range(stand_in_commands.STEPS)]
        for number, names in TRAINED.items()
    },
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("number", [3, 4])
def test_time_that_is_over_stops_a_training_that_goes_on_elsewhere(
    tmp_path: Path, trace: Path, number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """In three places at least; what is saved travels, what has finished does not start again."""
    hangs = {3: "one-fold1 2\ntwo 1", 4: "dense-seed 3\nlamb-seed 1"}
    trace.with_name(stand_in_commands.HANGS).write_text(hangs[number])
    short = {"limit_s": 4.5, "reserve_s": 2.0, "part_mb": 0.004}
    where, places = tmp_path / "1", 1
    while not list(where.glob("gpu-release-*.json")):
        assert places < 20
        result = run(settings(where, number, **short))
        if result.partial:
            assert f"make gpu-release SLICE={number}" in capfd.readouterr().out
            places += 1
            where = moved(where, number, tmp_path / str(places))
            files = list((where / f"state-{number}").iterdir())
            assert max(file.stat().st_size for file in files) <= 4000
    assert places > 2
    taken = Counter(steps(trace))
    assert set(taken) == set(ALL_STEPS[number])
    # One step for each stop may be taken again.
    assert sum(taken.values()) <= len(ALL_STEPS[number]) + places
    assert finished(where, number)["figures"]["gain"]["value"] == 1


@pytest.mark.timeout(240)
def test_sigterm_ends_it_with_a_state_that_goes_on_elsewhere(tmp_path: Path, trace: Path) -> None:
    trace.with_name(stand_in_commands.HANGS).write_text("two-fold0 1")
    child = begun(settings(tmp_path / "a", 3))
    deadline = time.monotonic() + 90
    while "two-fold0 1" not in steps(trace):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    run(settings(moved(tmp_path / "a", 3, tmp_path / "b"), 3))
    taken = Counter(steps(trace))
    assert taken == Counter({**dict.fromkeys(ALL_STEPS[3], 1), "two-fold0 1": 2})


def test_a_state_has_no_more_megabytes_than_it_may(
    tmp_path: Path, trace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Checkpoints go first: then a training that was stopped begins again where it was brought."""
    trace.with_name(stand_in_commands.HANGS).write_text("one-fold0 2")
    stopped = {"limit_s": 4.5, "reserve_s": 2.0}
    small = {**stopped, "state_mb": 0.002}
    assert run(settings(tmp_path / "a", 3, **small)).partial
    assert "checkpoints are left out" in capfd.readouterr().out
    there = moved(tmp_path / "a", 3, tmp_path / "b")
    with pytest.raises(JobError, match=r"more than state_mb = 0\.002; give more"):
        run(settings(there, 3, state_mb=0.002))
    assert Counter(steps(trace))["one-fold0 0"] == 2


def test_the_rate_that_does_best_on_validation_images_is_taken_and_one_that_fails_is_not(
    tmp_path: Path, trace: Path
) -> None:
    own = settings(tmp_path, 4)
    result = run(own)
    assert result.parts["pilot, lars"] == {"0.1": 0.75, "0.2": 0.5}
    assert result.parts["asked"]["lars"] == {"most_points_lost": 1.0, "met": True}
    study = trained.read_yaml(tmp_path / "work-4" / "study.yaml")
    assert study["arms"]["lars"]["recipe"]["learning_rate"] == 0.1
    large = trained.LargeBatches(own, tmp_path)
    for name, code, value in (("lars-0.1", 1, None), ("lars-0.2", 1, None)):
        outcome = Outcome("failed", 1.0, tmp_path / "log", code)
        large.take(tmp_path / "work-4", trained.Piece(name, []), outcome)
        assert large._tried(tmp_path / "work-4")["lars"][name[5:]] is value
        if name == "lars-0.1":
            assert large._taken(tmp_path / "work-4") == {"lars": 0.2}
    with pytest.raises(JobError, match="all rates of lars failed"):
        large._taken(tmp_path / "work-4")
    killed = Outcome("failed", 1.0, tmp_path / "log", -9)
    with pytest.raises(JobError, match=r"lars-0\.1 failed; its log is"):
        large.take(tmp_path / "work-4", trained.Piece("lars-0.1", []), killed)


@pytest.mark.timeout(240)
def test_tests_that_have_ended_are_not_run_again(tmp_path: Path) -> None:
    """Real pytest, on a checkout of four tests, killed after the second one."""
    own = settings(tmp_path / "a", 1)
    outcomes = tmp_path / "a" / "work-1" / "outcomes.jsonl"
    checkout = measured.toy.tests(tmp_path / "a")
    slow = "import time\n\n\ndef pytest_runtest_setup(item):\n    time.sleep(0.3)\n"
    (checkout / "conftest.py").write_text(slow)
    kill_when(begun(own), lambda: outcomes.is_file() and outcomes.read_text().count("\n") > 1)
    assert not (tmp_path / "a" / "work-1" / "tests.json").exists()
    with outcomes.open("a") as file:
        file.write('{"test": "tests/test_toy.py::test_that_is_skip')  # cut short by a kill
    result = run(own)
    assert result.parts["tests"]["passed"] == 3
    assert result.parts["tests"]["skipped"] == {
        "tests/test_toy.py::test_that_is_skipped": "Skipped: no second GPU"
    }
    assert outcomes.read_text().count("outcome") == 4


def test_failed_tests_end_the_command_with_their_names(tmp_path: Path) -> None:
    own = settings(tmp_path, 1)
    measured.toy.tests(tmp_path)
    run(own)
    (tmp_path / "work-1" / "result.json").unlink()
    outcomes = tmp_path / "work-1" / "outcomes.jsonl"
    outcomes.write_text(outcomes.read_text().replace('"passed"', '"failed"', 1))
    with pytest.raises(JobError, match=r"2 passed, 1 failed, 1 skipped; failed: tests/test_toy"):
        run(own)


def test_ratios_are_those_of_all_rounds(tmp_path: Path, trace: Path) -> None:
    result = run(settings(tmp_path, 2))
    figure = result.figures["ours_over_timm"]
    assert (figure.value, figure.n) == (1.5, 6)
    assert result.figures["ours_over_ceiling"].value == 0.5
    assert result.figures["ceiling"].value == measured.toy.BATCH * measured.toy.STEPS
    assert result.parts["asked"] == {
        "ours_over_timm": {"least": 1.15, "met": True},
        "ours_over_ceiling": {"least": 0.6, "met": False},
    }


def test_a_turn_that_never_fits_is_refused_and_one_that_does_not_fit_any_more_waits(
    tmp_path: Path, trace: Path
) -> None:
    with pytest.raises(JobError, match="cannot go on from its middle and did not end in"):
        run(settings(tmp_path / "a", 2, limit_s=0.6, reserve_s=0.5))
    result = run(settings(tmp_path / "b", 2, limit_s=10, reserve_s=0.5, turn_s=9))
    assert "1 of 2 turns" in result.partial
    assert "turn-2 begun" not in steps(trace)


def test_a_command_that_fails_is_named(
    tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained, "bench", lambda *_: [sys.executable, "-S", "-c", "1/0"])
    with pytest.raises(JobError, match=r"folds failed; its log is .*folds.log"):
        run(settings(tmp_path, 3))


def test_without_a_gpu_or_inputs_it_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.delenv("SKINDX_REAL", raising=False)
    for number in (1, 2):
        with pytest.raises(UserError, match=f"slice {number} .*needs an NVIDIA GPU"):
            run(Config(slice=number, folder=tmp_path))
    with pytest.raises(UserError, match="is no dataset; build it first"):
        run(Config(slice=3, folder=tmp_path, dataset=tmp_path, members=ROOT / Config().members))
    with pytest.raises(UserError, match="holds no networks"):
        run(Config(slice=3, folder=tmp_path, members=tmp_path))
    with pytest.raises(UserError, match="needs neither a dataset nor weights"):
        run(Config(slice=2, folder=tmp_path, prepare=True))
    with pytest.raises(UserError, match="reserve_s must be less"):
        Config.load(None, ["limit_s=60"])


def test_datasets_and_weights_travel_in_parts(tmp_path: Path) -> None:
    toy = measured.toy.inputs(tmp_path / "made")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "start.pth").write_bytes(b"start")
    member = toy.members / "one" / "train.yaml"
    member.write_text(member.read_text().replace("name: one", "name: one\n  weights: start.pth"))
    given = {"members": toy.members, "folder": tmp_path / "a", "slice": 3, "part_mb": 0.02}
    run(Config(**given, dataset=toy.dataset, weights=tmp_path / "weights", prepare=True))
    parts = [*(tmp_path / "a" / "inputs-3").glob("*.part")]
    assert len(parts) > 2
    assert max(part.stat().st_size for part in parts) <= 20_000
    # Elsewhere neither the dataset nor the weights are where they were.
    shutil.copytree(tmp_path / "a" / "inputs-3", tmp_path / "b" / "inputs-3")
    there = Config(**{**given, "folder": tmp_path / "b"}, dataset=tmp_path, weights=tmp_path)
    release._take_inputs(tmp_path / "b", 3)
    own = trained.Networks(there, tmp_path / "b")
    before = trained.Networks(
        Config(**given, dataset=toy.dataset, weights=tmp_path / "weights"), tmp_path / "a"
    )
    assert own.made_from() == before.made_from()
    assert {name: file.read_bytes() for name, file in own.inputs().items()} == {
        name: file.read_bytes() for name, file in before.inputs().items()
    }
    parts[0].write_bytes(b"")
    shutil.copytree(tmp_path / "a" / "inputs-3", tmp_path / "c" / "inputs-3")
    with pytest.raises(UserError, match="is not as it was written"):
        release._take_inputs(tmp_path / "c", 3)


def test_the_real_commands_and_settings_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each as far as without a GPU and real images: a typo would cost the time on a GPU."""
    monkeypatch.setenv("SKINDX_REAL", str(tmp_path))
    monkeypatch.chdir(ROOT)
    (tmp_path / "weights").mkdir()
    made = Config(slice=3, folder=tmp_path, dataset=measured.toy.inputs(tmp_path).dataset)
    names = ("tf_efficientnet_lite0.fp16.safetensors", "tf_efficientnet_lite1.fp16.safetensors")
    for name in (*names, "mobilenetv2_100_qat.pth"):
        (tmp_path / "weights" / name).touch()
    work = tmp_path / "work"
    work.mkdir()
    networks, large = (own(made, tmp_path) for own in (trained.Networks, trained.LargeBatches))
    monkeypatch.chdir(work)
    folds, first = networks.next(work), large.next(work)
    assert folds is not None
    assert first is not None
    assert first.name == "lars-x16-0.05"
    found = folds_of(TrainSettings.load(work / "folds.yaml", []), work / "folds.yaml")
    assert len(found) == 20
    released = TrainSettings.load(ROOT / "configs" / "ham10000-release.yaml", [])
    recipes = {own.name: own.settings.recipe for own in found}
    assert {own.name: own.recipe for own in released.members}.items() <= recipes.items()
    for arm, rates in large._rates.items():
        for rate in rates:
            trained.write_yaml(work / "pilot.yaml", large._pilot(f"{arm}-{rate:g}", arm, rate))
            tried = TrainSettings.load(work / "pilot.yaml", [])
            assert (tried.recipe.learning_rate, tried.recipe.batch) == (rate, 256)
            assert tried.recipe.head_learning_rate == pytest.approx(2 * rate)
            trained.write_json(work / "pilot" / f"{arm}-{rate:g}.json", {"val_balanced": rate})
    convergence = large.next(work)
    assert convergence is not None
    arms = arm_settings(Study.load(work / "study.yaml"), made.seeds, "study")
    batches = {name: arm.recipe.batch for name, arm in arms.items()}
    assert batches == {"dense": 16, "lars-x16": 256, "lamb-x16": 256}
    assert {name: arm.recipe.learning_rate for name, arm in arms.items()} == {
        "dense": 0.003, "lars-x16": 0.2, "lamb-x16": 0.002
    }  # fmt: skip
    for piece in (folds, convergence):
        name = piece.command[piece.command.index("skindx_bench") + 1]
        sets = [word for word in piece.command if "=" in word]
        importlib.import_module(BENCHES[name]).Config.load(None, sets)
    for number in (1, 2):
        piece = release.SLICES[number](Config(slice=number), tmp_path).next(work)
        sets = [word for word in piece.command if word.startswith(("gpu_", "rounds"))]
        trainer.Config.load(None, sets)
    config = tmp_path / "one.yaml"
    trained.write_yaml(config, networks._training("mobilenetv2-144", None))
    (member,) = TrainSettings.load(config, []).members
    assert (member.fold, str(member.weights)) == (None, "weights/mobilenetv2_100_qat.pth")


# States that are damaged, foreign, older or newer.


def state(folder: Path, **made_from: Any) -> CarriedState:
    made = {"slice": 3, "code": "abc", **made_from}
    return CarriedState(folder / "state", folder / "work", made, 5000)


def packed(own: CarriedState, content: str) -> None:
    own.open()
    (own.work / "file.txt").write_text(content)
    own.pack([own.work / "file.txt"])


def test_of_state_and_working_folder_the_newer_one_counts(tmp_path: Path) -> None:
    own, other = state(tmp_path / "a"), state(tmp_path / "b")
    packed(own, "first")
    shutil.copytree(own.folder, other.folder)
    other.open()
    assert (other.work / "file.txt").read_text() == "first"
    # What a kill left in the working folder is newer than the state that was packed before it.
    (other.work / "file.txt").write_text("second")
    other.open()
    assert (other.work / "file.txt").read_text() == "second"
    packed(other, "third")
    old = tmp_path / "old"
    shutil.copytree(own.folder, old)
    shutil.rmtree(own.folder)
    shutil.copytree(other.folder, own.folder)
    own.open()
    assert (own.work / "file.txt").read_text() == "third"
    shutil.rmtree(own.folder)
    shutil.copytree(old, own.folder)  # an older one does not undo what came after it
    own.open()
    assert (own.work / "file.txt").read_text() == "third"
    packed(own, "fourth")
    packed(other, "another fourth")
    shutil.rmtree(own.folder)
    shutil.copytree(other.folder, own.folder)
    with pytest.raises(UserError, match="begun apart; move one of the two away"):
        own.open()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"code": "xyz"}, r"another version of the code \(code was abc and is xyz\)"),
        ({"slice": 4}, r"other settings .*\(slice was 3 and is 4\)"),
        ({"folds": 5}, r"folds was none and is 5"),
    ],
)
def test_a_state_of_other_settings_or_code_is_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    packed(state(tmp_path), "mine")
    for gone in (None, tmp_path / "work", tmp_path / "state"):
        if gone:
            shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-{gone.name}"))
            shutil.rmtree(tmp_path.with_name(f"{tmp_path.name}-{gone.name}") / gone.name)
        folder = tmp_path.with_name(f"{tmp_path.name}-{gone.name}") if gone else tmp_path
        with pytest.raises(UserError, match=words):
            state(folder, **change).open()


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    own = state(tmp_path)
    packed(own, random.Random(0).randbytes(10_000).hex())
    parts = sorted(own.folder.glob("*.part"))
    assert len(parts) > 2
    whole = parts[1].read_bytes()
    for damage, words in (
        (whole[:-1], "is not as it was written"),
        (bytes([whole[0] ^ 1]) + whole[1:], "is not as it was written"),
        (None, "is missing"),
    ):
        parts[1].unlink() if damage is None else parts[1].write_bytes(damage)
        with pytest.raises(UserError, match=f"is damaged .*{words}"):
            own.open()
    parts[1].write_bytes(whole)
    read_index(own.folder)
    text = (own.folder / INDEX).read_text()
    for damage_text in (text.replace("abc", "abd"), text[: len(text) // 2], ""):
        (own.folder / INDEX).write_text(damage_text)
        with pytest.raises(UserError):
            own.open()


@pytest.mark.parametrize(("written", "then"), [(0, "first"), (1, "second"), (2, "second")])
def test_a_kill_while_a_state_is_written_leaves_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int, then: str
) -> None:
    """Killed before the index, before the mark of the working folder, and after it."""
    own = state(tmp_path)
    packed(own, "first")

    def killed() -> None:
        writes = iter(range(9))

        def write(path: Path, value: Any) -> None:
            if next(writes) == written:
                os.kill(os.getpid(), signal.SIGKILL)
            write_json(path, value)

        monkeypatch.setattr(carried, "write_json", write)
        packed(own, "second")
        os.kill(os.getpid(), signal.SIGKILL)

    assert forked(killed) == [-signal.SIGKILL]
    elsewhere = state(tmp_path / "elsewhere")
    shutil.copytree(own.folder, elsewhere.folder)
    elsewhere.open()
    assert (elsewhere.work / "file.txt").read_text() == then
    own.open()
    assert (own.work / "file.txt").read_text() == "second"  # what the kill left goes on
    packed(own, "third")
    assert {file.name for file in own.folder.glob("*.part")} == set(read_index(own.folder)["parts"])


# The real commands.


@pytest.mark.lab
@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_real_commands_are_killed_moved_and_go_on(tmp_path: Path, number: int) -> None:
    """So that a short time on a GPU is not lost to a typo."""
    where = tmp_path / "here"
    command = [sys.executable, "-m", "skindx_bench", "gpu-release", "--smallest"]
    sets = [f"slice={number}", "turns=2", "seeds=[0, 1]"]
    command += [word for own in sets for word in ("--set", own)]
    work, there = where / f"work-{number}", tmp_path / "there"
    in_work = {
        1: (work / "outcomes.jsonl").is_file,
        2: (work / "turn-1.json").is_file,
        3: lambda: list(work.glob("folds/two-fold0/checkpoints/*/epoch-*/index.json")),
        4: lambda: list(work.glob("study/arms/lars/*/run/checkpoints/*/epoch-*/index.json")),
    }
    with subprocess.Popen([*command, "--set", f"folder={where}"]) as process:
        deadline = time.monotonic() + 500
        while not in_work[number]():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.kill()
    # A stop that comes soon: what was saved is packed, and the rest is done elsewhere.
    soon = ["--set", f"folder={where}", "--set", "limit_s=42", "--set", "reserve_s=36"]
    subprocess.run([*command, *soon], check=False, timeout=300)
    if not (where / f"gpu-release-{number}-fake.json").is_file():
        moved(where, number, there)
        where = there
    subprocess.run([*command, "--set", f"folder={where}"], check=True, timeout=900)
    written = finished(where, number)
    expected = {
        1: set(),
        2: {"ours_over_timm", "ours_over_ceiling"},
        3: {"all_ensemble_minus_chosen_balanced_accuracy"},
        4: {"lars_minus_dense_balanced", "lamb_minus_dense_balanced"},
    }
    assert expected[number] <= set(written["figures"])
    if number == 3:
        assert set(written["models"]) >= {"one-fold0", "two-fold1", "one", "two"}
