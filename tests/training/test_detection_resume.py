"""A detector's training that is stopped in the middle goes on to the same bits."""

from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

from skindx.data.manifest import read_manifest
from skindx.training.checkpoint.finished import CHECKPOINT
from skindx.training.checkpoint.keeper import checkpoint_folder
from skindx.training.checkpoint.resume import Resuming
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.ranks import join
from skindx.training.launching.supervise import StoppedError
from skindx.training.loop import train
from skindx.training.parallel.mesh import leave
from skindx.training.tasks.detector_job import DetectorJob


def _settings(exchange: dict[str, Any], epochs: int) -> TrainSettings:
    return TrainSettings.parse(
        {
            "engine": {"accelerator": "cpu"},
            "exchange": exchange,
            "detector": {"size": 64, "epochs": epochs, "batch": 18},
            "checkpoint": {"every_steps": 1},
        }
    )


class _Stop:
    """Asks for a stop before step `after`, counted from one, of this sitting."""

    def __init__(self, after: int) -> None:
        self._left = after

    @property
    def requested(self) -> bool:
        self._left -= 1
        return self._left == 0

    def done(self) -> None:
        pass


def _train_in_pieces(
    dataset: Path, run: Path, exchange: dict[str, Any], epochs: int
) -> dict[str, Any]:
    settings = _settings(exchange, epochs)
    mesh = join(settings.engine)
    job = DetectorJob(run, dataset, settings, read_manifest(dataset))

    def in_one_sitting(folder: str, stop_after: int) -> Any:
        at = checkpoint_folder(run / folder, CHECKPOINT)
        saving = Resuming(at, "mark", settings.checkpoint, _Stop(stop_after))
        with job.callbacks(shown=False) as callbacks:
            return train(job.setup(mesh, callbacks.line), callbacks, saving)

    whole, history = in_one_sitting("whole", 0)
    sittings = 0
    for stop_after in (*[2] * epochs, 0):  # within each epoch, at the end
        try:
            pieces, again = in_one_sitting("pieces", stop_after)
        except StoppedError:
            sittings += 1
    leave()
    parts = pieces.state
    timeless = [[{**row, "seconds": 0} for row in rows] for rows in (history, again)]
    return {
        "sittings": sittings,
        "different": [name for name, each in whole.state.items() if not each.equal(parts[name])],
        "histories": timeless,
    }


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("exchange", "ranks", "epochs"),
    [
        ({"kind": "dense"}, 1, 1),
        pytest.param({"kind": "powersgd"}, 2, 2, marks=pytest.mark.long),
        pytest.param({"kind": "local", "steps": 2}, 2, 2, marks=pytest.mark.long),
    ],
    ids=["dense", "powersgd", "local"],
)
def test_a_stopped_detector_goes_on_to_the_bit(
    exchange: dict[str, Any], ranks: int, epochs: int, small_dataset: Path, tmp_path: Path
) -> None:
    for result in run_ranks(ranks, _train_in_pieces, small_dataset, tmp_path, exchange, epochs):
        assert result["sittings"] == epochs
        assert result["different"] == []
        whole, pieces = result["histories"]
        assert whole == pieces
        assert len(whole) == epochs
