"""Slices 3 and 4: the release's networks, and large batches.

`python -m skindx_bench.gpu_release.trained network CONFIG DATASET RUN KEPT` trains the one network
of a run and keeps it in half precision; `… pilot CONFIG DATASET RUN VIEW` trains it for a pilot.
"""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from skindx.core.atomic_files import write_json
from skindx.core.errors import JobError, UserError
from skindx.core.machine import python_command
from skindx_bench.gpu_release import toy
from skindx_bench.gpu_release.pieces import (
    Config,
    DatasetSource,
    Files,
    Piece,
    accelerator,
    bench,
    figures_of,
    last_epoch,
    of_run,
    read_yaml,
    refuse_failed,
    write_yaml,
)
from skindx_bench.harness.parts import Outcome
from skindx_bench.harness.result import MEANS, Result

JUDGED_BY = "val_balanced"
"""Column of a history by which the pilot of slice 4 chooses."""
_FOLDS = 3
"""Of slice 4."""


class Networks:
    """Slice 3: the release's networks, out of fold and on the whole of the training split."""

    needs_gpu = False

    def __init__(self, settings: Config, folder: Path) -> None:
        self._settings = settings
        own = toy.inputs(folder) if settings.fake else None
        self._members = own.members if own else settings.members
        self._source = DatasetSource(settings, folder, own.dataset if own else None, "ham10000")
        self._folds = 2 if settings.fake else settings.folds
        self._kept = [read_yaml(file) for file in sorted(self._members.glob("*/train.yaml"))]
        if not self._kept:
            raise UserError(f"{self._members} holds no networks (MEMBER/train.yaml).")
        self._names = [kept["members"][0]["name"] for kept in self._kept]

    def _weights(self) -> list[str]:
        named = (kept["members"][0].get("weights") for kept in self._kept)
        return sorted({Path(name).name for name in named if name})

    def inputs(self) -> Files:
        return self._source.files(self._weights())

    def made_from(self) -> dict[str, Any]:
        self._source.check(self._weights())
        return {
            "folds": self._folds,
            "members": self._training(None, None)["members"],
            "manifest": self._source.manifest(),
        }

    def _training(self, only: str | None, fold: str | None) -> dict[str, Any]:
        """Return the settings of one network, or of all, with or without folds."""
        members = []
        for kept in self._kept:
            (member,) = kept["members"]
            if only in (None, member["name"]):
                weights = member.get("weights")
                members.append({
                    **member,
                    "recipe": member.get("recipe") or kept["recipe"],
                    # In the working folder, where commands run: the same on every machine.
                    "weights": f"weights/{Path(weights).name}" if weights else None,
                    "fold": fold,
                })  # fmt: skip
        return {
            "name": "ham10000",
            "folds": self._folds,
            "engine": {"accelerator": accelerator(self._settings), "ranks": 1},
            "loader": {"cache": {"kind": "memory"}},
            "checkpoint": {"keep": 1},
            "members": members,
        }

    def next(self, work: Path) -> Piece | None:
        self._source.link_weights(work, self._weights())
        dataset = str(self._source.folder())
        if not (work / "folds.json").is_file():
            write_yaml(work / "folds.yaml", self._training(None, "each"))
            sets = {
                "dataset": dataset, "config": work / "folds.yaml", "out": work / "folds",
                "kept": work / "kept", "least_folds": self._folds,
            }  # fmt: skip
            return Piece("folds", bench("folds", work / "folds.json", sets))
        for name in self._names:
            if not self._member(work, name).is_file():
                config, run = work / f"{name}.yaml", work / "runs" / name
                write_yaml(config, self._training(name, None))
                return Piece(name, training_of("network", config, dataset, run, work / "networks"))
        return None

    @staticmethod
    def _member(work: Path, name: str) -> Path:
        return work / "networks" / name / "members" / name / "member.json"

    def take(self, work: Path, piece: Piece, outcome: Outcome) -> None:
        refuse_failed(piece, outcome)
        if outcome.status == "passed":  # what a finished training leaves is not needed any more
            for folder in ("folds",) if piece.name == "folds" else (f"runs/{piece.name}",):
                shutil.rmtree(work / folder, ignore_errors=True)

    def progress(self, work: Path) -> str:
        rows = len(list((work / "kept").glob("*.parquet")))
        whole = sum(self._member(work, name).is_file() for name in self._names)
        of = len(self._names)
        return f"{rows} of {self._folds * of} folds and {whole} of {of} networks"

    def carried(self, work: Path) -> Iterator[Path]:
        yield from work.glob("kept/*.parquet")
        yield from work.glob("folds.json")
        yield from (file for file in work.glob("networks/**/*") if file.is_file())
        for run in (*work.glob("folds/*"), *work.glob("runs/*")):
            if not (work / "kept" / f"{run.name}.parquet").is_file():
                yield from of_run(run)

    def result(self, work: Path) -> Result:
        folds = json.loads((work / "folds.json").read_text(encoding="utf-8"))
        networks = {
            name: {
                **last_epoch(self._member(work, name).with_name("history.csv")),
                "trained": "train split, judged on val",
            }
            for name in self._names
        }
        named = self._members.name if self._members.is_absolute() else self._members
        note = (
            f"Out of fold: {self._folds} folds of {len(self._names)} networks, whose settings are "
            f"those of {named}. The networks themselves, in half precision, are in "
            "the state that travels, under networks."
        )
        return Result(
            "gpu-release",
            figures_of(folds),
            notes=(note, *folds["notes"]),
            models={**folds["models"], **networks},
            parts=folds["parts"],
            headings=MEANS,
        )


class LargeBatches:
    """Slice 4: LARS and LAMB at sixteen times the batch, beside the small one, seed by seed.

    Before them a pilot: each rate that `pilot` lists for an arm trains one network of the first
    fold, and the one whose last epoch does best on its validation images is taken.
    """

    needs_gpu = True

    def __init__(self, settings: Config, folder: Path) -> None:
        self._settings = settings
        own = toy.inputs(folder) if settings.fake else None
        self._study = read_yaml(own.study if own else settings.study)
        self._rates: Mapping[str, list[float]] = self._study.pop("pilot", {})
        self._source = DatasetSource(settings, folder, own.dataset if own else None, "isic9")
        self._use = (0,) if settings.fake else (0, 1, 2)

    def _weights(self) -> list[str]:
        named = (member.get("weights") for member in self._study["training"]["members"])
        return sorted({Path(name).name for name in named if name})

    def inputs(self) -> Files:
        return self._source.files(self._weights())

    def made_from(self) -> dict[str, Any]:
        self._source.check(self._weights())
        return {
            "study": self._own_study({}),
            "pilot": dict(self._rates),
            "manifest": self._source.manifest(),
            "seeds": list(self._settings.seeds),
            "use": list(self._use),
        }

    def _own_study(self, taken: Mapping[str, float]) -> dict[str, Any]:
        """Return the study with the rates that its pilot has taken."""
        training = self._study["training"]
        engine = {**training["engine"], "accelerator": accelerator(self._settings), "ranks": 1}
        members = [
            {**member, "weights": f"weights/{Path(member['weights']).name}"}
            if member.get("weights")
            else member
            for member in training["members"]
        ]
        own = {**training, "engine": engine, "members": members, "checkpoint": {"keep": 1}}
        arms = {
            name: {**arm, "recipe": _at_rate(arm["recipe"], taken[name])} if name in taken else arm
            for name, arm in self._study["arms"].items()
        }
        return {**self._study, "training": own, "arms": arms}

    def _trials(self) -> dict[str, tuple[str, float]]:
        """Return the arm and the rate of each training of the pilot, by its name."""
        return {f"{arm}-{rate:g}": (arm, rate) for arm, own in self._rates.items() for rate in own}

    def _tried(self, work: Path) -> dict[str, dict[str, float | None]]:
        """Return the validation figure of each rate of an arm; None: it diverged."""
        found: dict[str, dict[str, float | None]] = {arm: {} for arm in self._rates}
        for name, (arm, rate) in self._trials().items():
            file = work / "pilot" / f"{name}.json"
            if file.is_file():
                found[arm][f"{rate:g}"] = json.loads(file.read_text(encoding="utf-8"))[JUDGED_BY]
        return found

    def _taken(self, work: Path) -> dict[str, float]:
        """Return the best rate of each arm. Raises JobError where all have failed."""
        best = {}
        for arm, tried in self._tried(work).items():
            right = {rate: value for rate, value in tried.items() if value is not None}
            if not right:
                raise JobError(f"all rates of {arm} failed; their logs are in {work / 'logs'}.")
            best[arm] = float(max(right, key=lambda rate: right[rate]))
        return best

    def next(self, work: Path) -> Piece | None:
        if (work / "convergence.json").is_file():
            return None
        self._source.link_weights(work, self._weights())
        for name, (arm, rate) in self._trials().items():
            if not (work / "pilot" / f"{name}.json").is_file():
                config, run = work / "pilot" / f"{name}.yaml", work / "pilot" / name
                write_yaml(config, self._pilot(name, arm, rate))
                view = work / "pilot-view"
                command = training_of("pilot", config, str(self._source.folder()), run, view)
                return Piece(name, command)
        write_yaml(work / "study.yaml", self._own_study(self._taken(work)))
        sets: dict[str, Any] = {
            "dataset": self._source.folder(), "config": work / "study.yaml", "out": work / "study",
            "folds": _FOLDS, "seeds": list(self._settings.seeds), "use": list(self._use),
            "margin": self._settings.margin, **({"draws": 50} if self._settings.fake else {}),
        }  # fmt: skip
        return Piece("large-batches", bench("convergence", work / "convergence.json", sets))

    def _pilot(self, name: str, arm: str, rate: float) -> dict[str, Any]:
        """Return the settings of one training of the pilot."""
        study = self._own_study({arm: rate})
        training, recipe = study["training"], study["arms"][arm]["recipe"]
        (member,) = training["members"]
        return {
            **training,
            "recipe": {**training["recipe"], **recipe},
            "members": [{**member, "name": name}],
        }

    def take(self, work: Path, piece: Piece, outcome: Outcome) -> None:
        if piece.name in self._trials() and outcome.status != "timed out":
            run, value = work / "pilot" / piece.name, None
            if outcome.status == "passed":
                value = last_epoch(run / "members" / piece.name / "history.csv")[JUDGED_BY]
            elif outcome.code != 1:  # a rate at which the loss is no number any more ends with 1
                refuse_failed(piece, outcome)
            write_json(run.with_name(f"{piece.name}.json"), {JUDGED_BY: value})
            shutil.rmtree(run, ignore_errors=True)
        else:
            refuse_failed(piece, outcome)

    def _evaluated(self, work: Path) -> list[Path]:
        homes = work.glob("study/arms/*/*")
        return [home for home in homes if (home / "evaluation" / "predictions.parquet").is_file()]

    def progress(self, work: Path) -> str:
        done, of = len(self._evaluated(work)), len(self._study["arms"]) * len(self._use)
        rates, tried = len(self._trials()), len(list((work / "pilot").glob("*.json")))
        return (
            f"{tried} of {rates} rates of the pilot, and {done} of {of} arms on a fold, "
            f"{len(self._settings.seeds)} seeds each"
        )

    def carried(self, work: Path) -> Iterator[Path]:
        yield from work.glob("pilot/*.json")
        for trial in work.glob("pilot/*/"):
            yield from of_run(trial)
        yield from work.glob("convergence.json")
        yield from work.glob("study/convergence.*")
        evaluated = set(self._evaluated(work))
        for home in work.glob("study/arms/*/*"):
            yield from home.glob("train.yaml")
            if home in evaluated:  # then no weights are needed, nor the bundle
                yield home / "evaluation" / "predictions.parquet"
                yield from home.glob("run/train.yaml")
                for name in ("member.json", "history.csv"):
                    yield from home.glob(f"run/members/*/{name}")
            else:
                yield from of_run(home / "run")

    def _asked(self, models: Mapping[str, Any]) -> dict[str, Any]:
        """Return whether each arm is shown to lose less than the margin in balanced accuracy."""
        return {
            arm: {
                "most_points_lost": self._settings.margin,
                "met": all(
                    pair["loses_less_than_margin"]
                    for pair in own["against"]
                    if pair["figure"] == "balanced_accuracy"
                ),
            }
            for arm, own in models.items()
            if own["against"]
        }

    def result(self, work: Path) -> Result:
        found = json.loads((work / "convergence.json").read_text(encoding="utf-8"))
        return Result(
            "gpu-release",
            figures_of(found),
            notes=tuple(note for note in found["notes"] if str(work) not in note),
            models=found["models"],
            parts={
                "asked": self._asked(found["models"]),
                **{f"pilot, {arm}": tried for arm, tried in self._tried(work).items()},
            },
            headings=MEANS,
        )


def _at_rate(recipe: Mapping[str, Any], rate: float) -> dict[str, Any]:
    """Return a recipe at another rate; the head's stays as many times as fast."""
    head = recipe.get("head_learning_rate")
    if head is not None:
        head *= rate / recipe["learning_rate"]
    return {**recipe, "learning_rate": rate, "head_learning_rate": head}


def training_of(verb: str, config: Path, dataset: str, run: Path, last: Path) -> list[str]:
    """Return the command that trains the one network of a run."""
    arguments = map(str, (verb, config, dataset, run, last))
    return python_command("-m", "skindx_bench.gpu_release.trained", *arguments)


def main(arguments: Sequence[str]) -> None:
    """Train the one network of a run; keep it, or train it on the first fold of a study."""
    from skindx.training.config.run import TrainSettings
    from skindx.training.run import finish_members

    verb, *rest = arguments
    config, dataset, run, last = map(Path, rest)
    settings = TrainSettings.load(config, [])
    if verb == "network":
        from skindx_bench.train.kept_members import keep_members

        finish_members(run, dataset, settings)
        keep_members(run, last)
    else:
        from skindx_bench.honesty.ood import fold_view

        finish_members(run, fold_view(dataset, last, 0, _FOLDS), settings)


if __name__ == "__main__":
    main(sys.argv[1:])
