import csv
import importlib.util
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from network_guard import Guarded, run_guarded

from skindx.core.errors import UserError
from skindx.training.callbacks import (
    CallbackList,
    History,
    TrainingBar,
    check_monitors,
    member_callbacks,
    time_left,
)
from skindx.training.checkpoint.finished import write_history
from skindx.training.config.run import TrainSettings
from skindx.training.trackers import TrainingInfo

SCRIPT = Path(__file__).parents[1] / "support/report_a_training.py"


def row(epoch: int) -> dict[str, float]:
    return {"epoch": epoch, "loss": 1 / epoch, "val_balanced": 0.1 * epoch}


# The real packages, offline


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Guarded:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return run_guarded([SCRIPT, str(port)], tmp_path_factory.mktemp("watched"), timeout_s=200)


@pytest.fixture(scope="module")
def found(guarded: Guarded) -> dict[str, Any]:
    assert guarded.returncode == 0, guarded.stderr
    found: dict[str, Any] = json.loads(guarded.stdout.splitlines()[-1])
    return found


def test_nothing_phones_home(guarded: Guarded) -> None:
    assert guarded.returncode == 0, guarded.stderr
    assert guarded.calls == []


def test_the_csv_has_each_epoch_once(found: dict[str, Any]) -> None:
    rows = list(csv.reader(found["csv"].splitlines()))
    assert rows[0] == ["epoch", "loss", "val_balanced"]
    assert [int(line[0]) for line in rows[1:]] == [1, 2, 3]
    assert float(rows[3][1]) == pytest.approx(1 / 3)


def test_tensorboard_has_each_epoch_and_every_second_step_once(found: dict[str, Any]) -> None:
    points = found["tensorboard"]
    assert points["epoch/loss"] == [
        [4, pytest.approx(1)],
        [8, pytest.approx(1 / 2)],
        [12, pytest.approx(1 / 3)],
    ]
    assert [step for step, _ in points["step/loss"]] == [2, 4, 6, 8, 10, 12]


def test_wandb_goes_on_with_the_same_run(found: dict[str, Any]) -> None:
    ids = {name.split()[0] for name in found["wandb"]}
    assert len(found["wandb"]) == 2  # a folder for each start, as it makes them offline
    assert len(ids) == 1
    rows = [logged for part in found["wandb"].values() for logged in part]
    assert rows == [pytest.approx(row(epoch)) for epoch in (1, 2, 3)]


def test_mlflow_goes_on_with_the_same_run(found: dict[str, Any]) -> None:
    (run,) = found["mlflow"]
    assert run["name"] == "skin a"
    assert run["status"] == "FINISHED"
    assert run["batch"] == "10"
    assert run["loss"] == [[epoch, pytest.approx(1 / epoch)] for epoch in (1, 2, 3)]


def test_a_server_that_is_gone_stops_nothing(found: dict[str, Any], guarded: Guarded) -> None:
    assert len(found["lost"].splitlines()) == 4
    assert guarded.stderr.count("warning: mlflow failed") == 1


# How they are asked


class Recorder:
    """Fails at the calls that are named."""

    def __init__(self, failing: set[str] = frozenset()) -> None:
        self.failing, self.calls = failing, []

    def _note(self, call: str, *values: object) -> None:
        self.calls.append((call, *values))
        if call in self.failing:
            raise OSError(28, "No space left on device")

    def start(self, info, history) -> None:
        self._note("start", len(history))

    def step(self, step, loss) -> None:
        self._note("step", step)

    def epoch(self, history) -> None:
        self._note("epoch", len(history))

    def close(self, *, finished) -> None:
        self._note("close", finished)


def watched(folder: Path) -> TrainingInfo:
    return TrainingInfo(folder, folder / "members" / "a", "skin", "a", {}, 4)


def drive(folder: Path, *monitors: Recorder, at: BaseException | None = None) -> None:
    names = [(f"recorder {index}", each) for index, each in enumerate(monitors)]
    with CallbackList(
        watched(folder), TrainingBar("a", 8, shown=True, batch=10), names
    ) as progress:
        progress.start([])
        for epoch in (1, 2):
            progress.step(2 * epoch - 1, 0.5)
            progress.step(2 * epoch, 0.5)
            progress.epoch([row(number) for number in range(1, epoch + 1)], f"epoch {epoch}")
        if at:
            raise at


def test_a_failing_monitor_warns_once_and_is_asked_again_each_epoch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    good, full, dead = Recorder(), Recorder({"step", "epoch", "close"}), Recorder({"start"})
    drive(tmp_path, good, full, dead)
    steps = [("step", 1), ("step", 2), ("epoch", 1), ("step", 3), ("step", 4), ("epoch", 2)]
    assert good.calls == [("start", 0), *steps, ("close", True)]
    assert full.calls == [("start", 0), ("step", 1), ("epoch", 1), ("epoch", 2), ("close", True)]
    assert dead.calls == [("start", 0)]
    said = capfd.readouterr().err
    assert said.count("warning: recorder 1 failed ([Errno 28] No space left on device)") == 1
    assert said.count("warning: recorder 2 failed") == 1
    assert said.count("warning") == 2


def test_a_training_that_fails_is_not_reported_as_finished(tmp_path: Path) -> None:
    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        drive(tmp_path, recorder, at=KeyboardInterrupt())
    assert recorder.calls[-1] == ("close", False)


def test_a_history_that_could_not_be_written_is_whole_later(tmp_path: Path) -> None:
    history, blocker = History(), tmp_path / "members"
    history.start(watched(tmp_path), [])
    blocker.touch()  # where a folder is needed
    with pytest.raises(OSError, match="members"):
        history.epoch([row(1)])
    blocker.unlink()
    history.epoch([row(1), row(2)])
    assert (blocker / "a" / "history.csv").read_text() == (
        "epoch,loss,val_balanced\n1,1.0,0.1\n2,0.5,0.2\n"
    )
    history.start(watched(tmp_path), [row(1)])
    assert len((blocker / "a" / "history.csv").read_text().splitlines()) == 2
    history.start(watched(tmp_path), [])
    assert not (blocker / "a" / "history.csv").exists()


def test_a_figure_that_came_later_leaves_older_rows_empty(tmp_path: Path) -> None:
    write_history(tmp_path / "h.csv", [row(1), {**row(2), "new": 7}])
    assert (tmp_path / "h.csv").read_text().splitlines() == [
        "epoch,loss,val_balanced,new",
        "1,1.0,0.1,",
        "2,0.5,0.2,7",
    ]


def test_only_the_first_rank_tells(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = TrainSettings.parse({"monitors": ["tensorboard"]})
    with member_callbacks(tmp_path, settings, settings.members[0], 100, shown=False) as progress:
        progress.start([])
        progress.step(1, 0.5)
        progress.epoch([row(1)], "epoch 1")
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr().err == ""


# Settings


def test_a_missing_package_is_reported_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monitors = TrainSettings.parse({"monitors": ["wandb"]}).monitors
    check_monitors(monitors)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="monitors=wandb needs wandb"):
        check_monitors(monitors)


def test_monitors_by_name_or_with_settings() -> None:
    settings = TrainSettings.parse(
        {"monitors": ["tensorboard", {"kind": "wandb", "mode": "online", "project": "p"}]}
    )
    assert [monitor.kind for monitor in settings.monitors] == ["tensorboard", "wandb"]
    assert TrainSettings.parse(settings.model_dump(mode="json")) == settings
    with pytest.raises(UserError, match=r"'tensorboard'\? Valid: tensorboard, wandb, mlflow"):
        TrainSettings.parse({"monitors": ["tensorbord"]})
    with pytest.raises(UserError, match="`monitors` has mlflow twice"):
        check_monitors(TrainSettings.parse({"monitors": ["mlflow", "mlflow"]}).monitors)


def test_a_log_says_how_far_a_training_is_and_how_long_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 0.0
    with TrainingBar("a", 400, shown=True, batch=10, clock=lambda: now) as bar:
        for _ in range(25):
            now += 2
            bar.step(1.25)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "a  step 8 of 400  loss 1.250  5 images/s, about 13 min left"
    assert [line.split()[2] for line in lines] == ["8", "16", "24"]
    with TrainingBar("a", 400, shown=False, clock=lambda: now) as bar:
        now += 1000
        bar.step(1.0)
        now += 1000
        bar.step(1.0)
    assert capsys.readouterr().err == ""
    assert [time_left(s) for s in (4.4, 119, 120, 7199, 7200, 90_000)] == [
        *("4 s", "119 s", "2.0 min", "120 min", "2.0 h", "25 h")
    ]
