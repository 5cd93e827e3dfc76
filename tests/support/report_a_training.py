"""A member's training as its monitors see it: stopped after two epochs, gone on with to a third.

Run as a script in an empty folder, in a process of its own, under the network guard; prints what
the real packages read back from the files that they wrote.
"""

import json
import os
import struct
import sys
from pathlib import Path

from skindx.training.callbacks import check_monitors, member_callbacks
from skindx.training.config.run import TrainSettings

RUN = Path("run")
SETTINGS = {
    "name": "skin",
    "members": [{"name": "a", "model": "test_resnet"}],
    "recipe": {"epochs": 3, "batch": 10},
    "monitors": [
        {"kind": "tensorboard", "every_steps": 2},
        "wandb",
        "mlflow",
    ],
}


def row(epoch: int) -> dict[str, float]:
    return {"epoch": epoch, "loss": 1 / epoch, "val_balanced": 0.1 * epoch}


class StoppedError(Exception):
    pass


def train(settings: TrainSettings, history: list[dict[str, float]], stop: int) -> None:
    """Four steps an epoch; `history` is what a checkpoint held."""
    with member_callbacks(RUN, settings, settings.members[0], 40, shown=True) as progress:
        progress.start(history)
        while len(history) < 3:
            for step in range(4):
                progress.step(4 * len(history) + step + 1, 0.5)
            if len(history) == stop:
                raise StoppedError
            history.append(row(len(history) + 1))
            progress.epoch(history, f"epoch {len(history)}")


def wandb_rows(folder: Path) -> list[dict[str, float]]:
    """Read a run file: blocks of 32 KiB of records, each after a checksum, a length and a type."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("*.wandb")
    data, at, rows = file.read_bytes(), 7, []
    while at + 7 <= len(data):
        size, kind = struct.unpack_from("<HB", data, at + 4)
        assert kind == 1, "a record in one piece"
        record = Record.FromString(data[at + 7 : at + 7 + size])
        at += 7 + size
        if record.WhichOneof("record_type") == "history":
            items = {
                (artifact.key or artifact.nested_key[0]): artifact.value_json
                for artifact in record.history.item
            }
            rows.append({key: json.loads(items[key]) for key in ("epoch", "loss", "val_balanced")})
    return rows


def read_back() -> dict[str, object]:
    from mlflow import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(RUN / "tensorboard" / "a"))
    events.Reload()
    client = MlflowClient((RUN / "mlruns").resolve().as_uri())
    experiment = client.get_experiment_by_name("skindx")
    runs = client.search_runs([experiment.experiment_id])
    return {
        "csv": (RUN / "members" / "a" / "history.csv").read_text(),
        "tensorboard": {
            tag: [(event.step, event.value) for event in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
        },
        "wandb": {
            folder.name.split("-")[-1] + f" {place}": wandb_rows(folder)
            for place, folder in enumerate(sorted((RUN / "wandb").glob("offline-run-*")))
        },
        "mlflow": [
            {
                "name": run.info.run_name,
                "status": run.info.status,
                "batch": run.data.params["recipe.batch"],
                "loss": [
                    (point.step, point.value)
                    for point in client.get_metric_history(run.info.run_id, "loss")
                ],
            }
            for run in runs
        ],
    }


def main() -> None:
    settings = TrainSettings.parse(SETTINGS)
    check_monitors(settings.monitors)
    try:
        train(settings, [], stop=2)
    except StoppedError:
        print("stopped", file=sys.stderr)
    train(settings, [row(1)], stop=3)  # the last checkpoint was older than what was told
    found = read_back()
    # A server that is not there: closed as soon as its port was known.
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    gone = {"kind": "mlflow", "uri": f"http://127.0.0.1:{sys.argv[1]}"}
    lost = TrainSettings.parse(
        {**SETTINGS, "members": [{"name": "b", "model": "test_resnet"}], "monitors": [gone]}
    )
    train(lost, [], stop=3)
    found["lost"] = (RUN / "members" / "b" / "history.csv").read_text()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
