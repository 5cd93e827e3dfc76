"""One rank of the benchmark of local steps, a process in a namespace: it trains, or times steps."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from skindx.core.machine import go_offline
from skindx.data.manifest import Record, read_manifest, split_of
from skindx.metrics import balanced_accuracy
from skindx.models.classifier.classifier import Classifier
from skindx.models.ensemble import Member
from skindx.taxonomy import Taxonomy
from skindx.training.callbacks import Silent
from skindx.training.config.engine import EngineSettings
from skindx.training.config.run import TrainSettings
from skindx.training.deepspeed.ranks import join
from skindx.training.loop import fit, take_step
from skindx.training.parallel.batch_norm import average_buffers
from skindx.training.parallel.mesh import Mesh, ProcessGroup, resolve_accelerator
from skindx.training.position import count_step
from skindx.training.state import Training
from skindx.training.tasks.classifier_job import setup_member
from skindx.training.tasks.classifier_task import ClassifierTask
from skindx.training.tasks.image_sets import TrainingSet
from skindx.training.tasks.open_sets import TrainingData, ValidationSet, open_sets
from skindx_bench.harness.answering import answer_commands
from skindx_bench.harness.netlab import transmitted
from skindx_bench.honesty.ood import refold
from skindx_methods.local_steps.round_guard import norms_of, recompute_statistics

_WARM = 2
"""Steps before the timed ones."""

# N = images of val and test, V = those of val, P = ranks, C = classes

Floats = NDArray[np.float64]


class AloneMesh(Mesh):
    """This process and no other."""

    def __init__(self, settings: EngineSettings) -> None:
        """Take the accelerator of the settings."""
        accelerator = resolve_accelerator(settings.accelerator)
        super().__init__(ProcessGroup(0, 1), torch.device(accelerator), settings)

    def barrier(self) -> None:
        """Return at once: there is no other rank."""

    def broadcast_from_main(self, work: Callable[[], Any]) -> Any:
        return work()


class LocalRank:
    """A rank of all: one training at a call."""

    def __init__(self, dataset: str, folds: int, images: int, most: int) -> None:
        """Join the others; a fold trains on so many `images`, of at `most` so many a class."""
        self._dataset, self._folds, self._images = Path(dataset), folds, images
        self._records = capped(read_manifest(self._dataset), most)
        self._classes = Taxonomy.load(self._dataset / "taxonomy.yaml").keys
        self._mesh = join(EngineSettings(accelerator="cpu", gradient_clip=0))

    def train(self, raw: dict[str, Any], apart: bool) -> dict[str, Any]:
        """Train, on the fold of the member's seed; return balanced accuracies after each epoch.

        Ranks that train `apart` never meet: of them it is the accuracy of the first one, of their
        averaged answers, and after the last epoch of their averaged weights.
        """
        data, split = self._data(int(raw["members"][0]["seed"]))
        answers_ENPC: list[Floats] = []

        class Answers(Silent):
            def epoch(_, history: Sequence[Any], line: str) -> None:  # noqa: N805
                members = self._mesh.data.size if apart else 1
                log_NC = training.task.finished.validation_NC
                answers_ENPC.append(np.exp(log_NC.reshape(len(data.val), members, -1)))

        def never_meet(training: Training[Any]) -> None:
            training.position.agreed = apart  # so that an epoch's end lets them alone

        began = time.process_time()
        training = self._setup(raw, data, apart=apart)
        fit(training, Answers(), never_meet)
        truth_N = np.array([self._classes.index(record.label) for record in data.val])
        scored = {"member0" if apart else "": [x_NPC[:, 0] for x_NPC in answers_ENPC]}
        if apart:
            scored["ensemble"] = [x_NPC.mean(1) for x_NPC in answers_ENPC]
            scored["soup"] = [self._soup(training, data)]
        training.engine.close()
        seconds = sum(self._mesh.gather(time.process_time() - began))
        return {
            "processor_s": round(seconds, 1),
            **{
                f"{name}_{part}".strip("_"): [
                    round(100 * balanced_accuracy(x_NC[rows], truth_N[rows]), 3) for x_NC in curve
                ]
                for name, curve in scored.items()
                for part, rows in (("val", slice(split)), ("test", slice(split, None)))
            },
        }

    def steps(
        self, raw: dict[str, Any], blocks: int, block: int, rounds: bool, limit_s: float
    ) -> dict[str, Any]:
        """Time `blocks` times `block` steps, two blocks at least, fewer after `limit_s`.

        Where blocks are `rounds` of local steps, a whole one goes before, else some steps do. A
        block that would take too long is shorter.
        """
        data, _ = self._data(int(raw["members"][0]["seed"]))
        training = self._setup(raw, data, apart=False)
        task = training.task
        batches = itertools.chain.from_iterable(task.batches(e, 0) for e in itertools.count())
        training.engine.train()

        def take(count: int) -> float:
            dist.barrier()
            started = time.perf_counter()
            for batch in itertools.islice(batches, count):
                loss = take_step(training, batch)
                count_step(training, loss, batch, Silent(), rate=0.0)
            dist.barrier()
            return float(max(self._mesh.gather(time.perf_counter() - started)))

        first = take(block if rounds else _WARM)
        if not rounds:
            block = max(2, min(block, round(limit_s / blocks / (first / _WARM))))
        seconds: list[float] = []
        sent: list[int] = []
        while len(seconds) < blocks and (len(seconds) < 2 or sum(seconds) * block < limit_s):
            before = transmitted()
            seconds.append(take(block) / block)
            sent.append(transmitted() - before)
        training.engine.close()
        return {"block": block, "step_s": seconds, "sent": sent}

    def _data(self, fold: int) -> tuple[TrainingData, int]:
        """Return a fold's images, those of test behind those of val; and how many are of val."""
        records = refold(self._records, fold % self._folds, self._folds)
        train, val, test = (split_of(records, part) for part in ("train", "val", "test"))
        order = np.random.default_rng(fold).permutation(len(train))[: self._images]
        chosen = [train[number] for number in sorted(order)]
        both: list[Record] = [*val, *test]
        return TrainingData(self._dataset, chosen, both, self._classes), len(val)

    def _setup(self, raw: dict[str, Any], data: TrainingData, *, apart: bool) -> Any:
        settings = TrainSettings.parse(raw)
        (member,) = settings.members
        mesh = replace(self._mesh, settings=settings.engine)

        def opened(*given: Any) -> tuple[TrainingSet, ValidationSet]:
            training, validation = open_sets(*given)
            if apart:  # each rank answers all images, which rank by rank stand side by side
                images, member, loader, _, say = given
                alone = AloneMesh(self._mesh.settings)
                validation = open_sets(images, member, loader, alone, say)[1]
            return training, validation

        return setup_member(settings, member, data, mesh, lambda _: None, open_images=opened)

    def _soup(self, training: Training[Any], data: TrainingData) -> Floats:
        """Return the answers N x C of the ranks' averaged weights."""
        task, mesh, network = training.task, self._mesh, training.engine.module
        assert isinstance(task, ClassifierTask)
        assert isinstance(network, Classifier)
        with torch.no_grad():
            for weight in network.parameters():
                dist.all_reduce(weight)
                weight.div_(mesh.data.size)
        shown = TrainingData(data.dataset, data.train, data.train, data.classes)
        loader = TrainSettings().loader
        seen = open_sets(shown, task.member, loader, mesh, lambda _: None)[1]
        member = Member("soup", network, task.member.preprocess)
        recompute_statistics(
            norms_of(network).values(),
            lambda: member.log_probabilities_of_squares(seen.squares()),
        )
        average_buffers(network, mesh)
        log_NC = member.log_probabilities_of_squares(task.validation.squares())
        return np.exp(log_NC)


def capped(records: Sequence[Record], most: int) -> list[Record]:
    """Return whole groups, drawn until a class has `most` images; in the order of the manifest."""
    groups = sorted({record.group for record in records})
    place = dict(zip(groups, np.random.default_rng(0).permutation(len(groups)), strict=True))
    counts: Counter[str] = Counter()
    chosen = set()
    for record in sorted(records, key=lambda record: place[record.group]):
        if record.group in chosen or counts[record.label] < most:
            chosen.add(record.group)
            counts[record.label] += 1
    return [record for record in records if record.group in chosen]


def _start(job: dict[str, Any]) -> LocalRank:
    go_offline()
    torch.set_num_threads(1)
    return LocalRank(**job)


if __name__ == "__main__":
    answer_commands(_start)
