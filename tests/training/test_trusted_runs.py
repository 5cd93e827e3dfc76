"""A run that somebody else passed around does nothing beyond itself without the user's word."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from skindx.core.errors import UserError
from skindx.training import run as runs
from skindx.training.config.run import TrainSettings
from skindx.training.ensembles.member_refs import member_refs
from skindx.training.run import train

MEMBER = {"name": "m", "model": "test_resnet", "preprocess": {"size": 32}}
THEIRS: dict[str, Any] = {
    "members": [MEMBER],
    "recipe": {"epochs": 1, "batch": 18},
    "engine": {"accelerator": "cpu"},
}


def _run(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    TrainSettings.parse({**THEIRS, **changes}, expand=False).save(folder / "train.yaml")
    return folder


def _ours(run: Path, **reused: Any) -> TrainSettings:
    return TrainSettings.parse(
        {"reused": [{"run": str(run), "member": "m", **reused}], "engine": {"accelerator": "cpu"}}
    )


class _LaunchedError(Exception):
    """Ranks would have been started."""


@pytest.fixture(autouse=True)
def _no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after the decision to train is another test's."""

    def launched(*arguments: object) -> None:
        raise _LaunchedError

    monkeypatch.setattr(runs, "_train_by_launcher", launched)
    monkeypatch.setattr(runs, "check", lambda *arguments: None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"members": [{**MEMBER, "weights": "/etc/hostname"}]}, "start m from /etc/hostname"),
        ({"members": [{**MEMBER, "weights": "RUN/../secret"}]}, "start m from .*secret"),
        ({"engine": {"hostfile": "RUN/hosts"}}, "start processes on the hosts of .*hosts"),
        ({"engine": {"deepspeed": "RUN/../ds.json"}}, "read the DeepSpeed settings .*ds.json"),
        ({"detector": {"from": "/srv/run"}}, "take the detector of /srv/run"),
        ({"detector": {"model": "/srv/yolo.yaml"}}, "read the detector's layers from /srv"),
        ({"loader": {"cache": {"kind": "disk", "folder": "/srv"}}}, "keep its cache in /srv"),
        ({"monitors": [{"kind": "wandb", "mode": "online"}]}, "send its figures to Weights"),
        ({"monitors": [{"kind": "mlflow", "uri": "https://x.example"}]}, "send its .*x.example"),
    ],
)
def test_training_a_run_of_others_needs_the_users_word(
    changes: dict[str, Any], said: str, small_dataset: Path, tmp_path: Path
) -> None:
    run = tmp_path / "theirs"
    (tmp_path / "secret").touch()
    (tmp_path / "ds.json").write_text("{}")
    filled = yaml.safe_load(yaml.safe_dump(changes).replace("RUN", str(run)))
    _run(run, **filled)
    with pytest.raises(UserError, match=said) as caught:
        train(small_dataset, _ours(run), tmp_path / "ours")
    assert f"--config {run}/train.yaml --out {run}" in str(caught.value)
    assert not (tmp_path / "ours").exists()
    # The same settings, given by the user, are the user's word.
    with pytest.raises(_LaunchedError):
        train(small_dataset, _ours(run, config=str(run / "train.yaml")), tmp_path / "ours")


def test_a_run_that_stays_inside_is_finished_first(small_dataset: Path, tmp_path: Path) -> None:
    inside = {**MEMBER, "weights": str(tmp_path / "theirs/start.safetensors")}
    run = _run(tmp_path / "theirs", members=[inside], detector={"model": "yolov8n.yaml"})
    (run / "start.safetensors").touch()
    with pytest.raises(_LaunchedError):
        train(small_dataset, _ours(run), tmp_path / "ours")


def test_a_pipe_as_weights_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    run = _run(tmp_path / "theirs", members=[{**MEMBER, "weights": str(tmp_path / "pipe")}])
    with pytest.raises(UserError, match="is not a plain file"):
        member_refs(tmp_path / "ours", _ours(run))


def test_a_run_reads_no_environment_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "swordfish")
    run = _run(tmp_path / "theirs", monitors=[{"kind": "mlflow", "uri": "https://x/${SECRET}"}])
    (source,) = member_refs(tmp_path / "ours", _ours(run)).values()
    assert "swordfish" not in str(source.settings)
