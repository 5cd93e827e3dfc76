"""A run that continues when ranks are lost: its checks, its launcher, and the ranks' work."""

import os
from collections.abc import Sequence
from pathlib import Path

from skindx.core.errors import UserError
from skindx.core.machine import child_environment
from skindx.data.manifest import Record
from skindx.training.config.run import SETTINGS, TrainSettings
from skindx.training.deepspeed.ranks import accelerator_variables, imports_once, launch
from skindx.training.launching.supervise import RANKS, StopRequest
from skindx.training.method import RunMethod
from skindx.training.parallel.mesh import resolve_accelerator
from skindx_methods.elastic.elastic_run import host_store, train_elastic
from skindx_methods.elastic.elastic_settings import ElasticSettings
from skindx_methods.elastic.restarts import deciding


class ElasticRun(RunMethod):
    """A run whose ranks are started again where they die, while the others go on."""

    def __init__(self, settings: TrainSettings) -> None:
        super().__init__(settings)
        assert isinstance(settings.engine.elastic, ElasticSettings)
        self._elastic = settings.engine.elastic

    def check_run(
        self, records: Sequence[Record], classes: int, run: Path, *, workers: int, everywhere: int
    ) -> None:
        """Raise UserError for more ranks that are needed than are started."""
        if self._elastic.min_ranks > everywhere:
            raise UserError(
                f"engine.elastic.min_ranks={self._elastic.min_ranks} is more than the "
                f"{everywhere} started ranks; lower engine.elastic.min_ranks, or start more ranks."
            )

    def launch(self, run: Path, dataset: Path) -> bool:
        """Start the ranks of this machine, which meet at a store of this process."""
        launch_ranks(self.settings, run, dataset)
        return True

    def train_as_rank(self, run: Path, dataset: Path, stop: StopRequest) -> bool | None:
        """Be one of the ranks; the first one writes the settings."""
        if os.environ["RANK"] == "0":
            self.settings.save(run / SETTINGS)
        return train_elastic(run, dataset, self.settings, stop)

    def train_as_launched(
        self, run: Path, dataset: Path, stop: StopRequest, only: Sequence[str]
    ) -> bool:
        """Be one of the ranks that `launch` has started."""
        train_elastic(run, dataset, self.settings, stop, only=only)
        return True


def launch_ranks(settings: TrainSettings, run: Path, dataset: Path) -> None:
    """Start the ranks, and wait for the end. Raises UserError, and what `supervise` raises."""
    engine, elastic = settings.engine, settings.engine.elastic
    assert isinstance(elastic, ElasticSettings)
    if engine.hostfile:
        raise UserError(
            "engine.elastic does not work with engine.hostfile, because the launcher of "
            "DeepSpeed stops all ranks when one dies; start one torchrun on each node "
            "(docs/clusters/launch.md)."
        )
    accelerator = resolve_accelerator(engine.accelerator)
    variables = child_environment(accelerator_variables(accelerator))
    store = host_store(variables)
    imports = ["skindx.training.jobs", "skindx_methods.elastic.elastic_run", "albumentations"]
    launch(
        engine,
        accelerator,
        "skindx.training.launching.rank",
        [str(run.resolve()), str(dataset.resolve())],
        notes=run / RANKS,
        grace_s=settings.checkpoint.grace_s,
        manager="skindx_methods.elastic.restarts",
        manager_words=[
            f"{elastic.min_ranks},{engine.timeout_s}",
            imports_once(accelerator, imports),
        ],
        meeting=variables,
        deciding=deciding,
    )
    del store
