"""Turns of all frameworks on an emulated cluster."""

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from skindx.core.errors import JobError, UserError
from skindx_bench.frameworks.graph import Graph, layers, network
from skindx_bench.frameworks.model import ARMS, FrameworkArm
from skindx_bench.frameworks.turns import Case, Config, FrameworkTurns, Opening, turn_of
from skindx_bench.harness.environments import ENVIRONMENTS, NotInstalledError, cache_folder
from skindx_bench.harness.netlab import NetLab
from skindx_bench.harness.ranks import FIRST_PORT, PeerRanks

_PATCHES = 3
"""On each side of an image."""


def write_images(folder: Path, images: int, side: int, classes: int, seed: int) -> dict[str, str]:
    """Write images N x S x S x 3 (uint8) of random patches, with labels N; return their files.

    Of pure noise all images look alike to a deep layer: its norm then divides by next to nothing,
    and rounding decides a step.
    """
    generator = np.random.default_rng(seed)
    patch = -(-side // _PATCHES)
    patches = generator.integers(0, 192, (images, _PATCHES, _PATCHES, 3), np.uint8)
    whole = patches.repeat(patch, 1).repeat(patch, 2)[:, :side, :side]
    noise = generator.integers(0, 64, whole.shape, np.uint8)
    files = {"images": str(folder / "images.npy"), "labels": str(folder / "labels.npy")}
    np.save(files["images"], whole + noise)
    np.save(files["labels"], generator.integers(0, classes, images))
    return files


def write_weights(file: Path, graph: Graph, seed: int) -> None:
    """Write a network's first weights (He et al. 2015, arXiv 1502.01852); norms begin at one.

    The last layer begins at zero: with large first gradients a step of a deep network would
    multiply what rounding has left, and losses of equal steps would part.
    """
    generator = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for node in graph:
        for name, shape in node.shapes.items():
            if name.endswith(".bias") or node is graph[-1]:
                found[name] = np.zeros(shape, np.float32)
            elif node.kind == "norm":
                found[name] = np.ones(shape, np.float32)
            else:
                scale = math.sqrt(2 / math.prod(shape[1:]))
                found[name] = scale * generator.standard_normal(shape, np.float32)
    save_file(found, file)


_SEED = 0


@dataclass(frozen=True)
class Running:
    """An arm and the Python of its ranks."""

    arm: FrameworkArm
    python: str

    @property
    def place(self) -> tuple[str, str]:
        """What arms have alike that share processes."""
        return self.python, self.arm.module


def arms_of(settings: Config) -> dict[str, FrameworkArm]:
    """Return the arms with the options of these settings."""
    found: dict[str, FrameworkArm] = {name: ARMS[name] for name in settings.arms}
    for name, arm in found.items():
        if arm.options.get("exchange", {}).get("kind") == "gtopk":
            exchange = {**arm.options["exchange"], "density": settings.density}
            found[name] = replace(arm, options={"exchange": exchange})
    return found


class Measurement:
    """Fills what is found, turn by turn; an arm that fails is left out from then on."""

    def __init__(  # noqa: PLR0917
        self,
        settings: Config,
        lab: NetLab,
        folder: Path,
        found: FrameworkTurns,
        say: Callable[[str], None],
        save: Callable[[], None] = lambda: None,
    ) -> None:
        """Write images and weights, the same for all. Raises UserError for images too small.

        What `found` holds already is not measured again; `save` is called when it has grown.
        """
        self._save = save
        self.settings, self.found = settings, found
        self._lab, self._folder, self._say = lab, folder, say
        self._starts = 0
        s = settings
        images = s.ranks * s.batch * s.loss_steps
        self._data = write_images(folder, images, s.side, s.classes, _SEED)
        for name in s.networks:
            try:
                graph = network(name, s.side, s.classes, s.shrink)
            except ValueError as error:
                raise UserError(f"side={s.side}: {error} ({name}); take larger ones.") from None
            found.layers[name] = layers(graph)
            write_weights(self._weights(name), graph, _SEED)

    def _weights(self, name: str) -> Path:
        return self._folder / f"{name}.safetensors"

    def prepare(self) -> dict[str, Running]:
        """Make the environments that are missing; return the arms that can run."""
        s, running = self.settings, dict[str, Running]()
        folder = s.environments or cache_folder()
        arms = arms_of(s)
        for name, arm in arms.items():
            python = sys.executable
            if arm.environment:
                self._say(f"{name}: environment in {folder}")
                try:
                    python = str(ENVIRONMENTS[arm.environment].make(folder))
                except (NotInstalledError, OSError) as error:
                    self._leave_out(name, str(error))
                    continue
            running[name] = Running(arm, python)
        return running

    def measure(self, running: Mapping[str, Running]) -> None:
        """Measure at all numbers of ranks, the largest first."""
        s = self.settings
        for name, one in running.items() if s.opening else ():
            self._opening(name, one)
            self._save()
        for ranks in sorted({s.ranks, *s.fewer_ranks}, reverse=True):
            # Weak scaling keeps the batch of a rank, strong scaling that of all.
            batches = list(dict.fromkeys((s.batch, s.batch * s.ranks // ranks)))
            here = {
                name: one
                for name, one in running.items()
                if not (one.arm.alone and 1 < ranks < s.ranks)
            }
            self._hosts: dict[tuple[str, str], PeerRanks] = {}
            try:
                for name in s.networks:
                    for batch in batches:
                        self._turns(here, name, ranks, batch)
            finally:
                for host in self._hosts.values():
                    host.end()

    def _started(self, name: str, ranks: int, ones: Sequence[Running]) -> PeerRanks:
        """Start the ranks of arms that share them. Raises JobError."""
        self._say(f"{name}: {ranks} ranks")
        self._starts += 1  # each start has a port and a folder of its own
        logs = self._folder / f"start{self._starts}"
        logs.mkdir()
        first = ones[0]
        started = PeerRanks(
            self._lab,
            ranks,
            [first.python, "-m", first.arm.module],
            {**self._data, "kinds": [one.arm.kind for one in ones]},
            logs=logs,
            port=FIRST_PORT + self._starts,
            limit_s=self.settings.limit_s,
        )
        started.__enter__()
        try:
            started.ask("hello")
        except BaseException:
            started.end()
            raise
        return started

    def _opening(self, name: str, one: Running) -> None:
        """Time the first step in processes of an arm's own."""
        s = self.settings
        case = Case(name, s.networks[0], s.ranks, s.batch)
        if case in self.found.openings:
            return
        began = time.perf_counter()
        try:
            ranks = self._started(name, 1 if one.arm.alone else s.ranks, [one])
            try:
                self._begin(ranks, one.arm, case)
                answers = ranks.ask("steps", count=1)
            finally:
                ranks.end()
        except JobError as error:
            self._leave_out(name, str(error))
            return
        peak = statistics.fmean(answer["peak_mb"] for answer in answers)
        self.found.openings[case] = Opening(time.perf_counter() - began, peak)

    def _turns(self, here: Mapping[str, Running], network: str, ranks: int, batch: int) -> None:
        """Let the arms take turns; the first round opens what later ones find open."""
        for turn in range(-1, self.settings.rounds):
            self._say(f"{network}, {ranks} ranks, batch {batch}: round {turn + 1}")
            names = [name for name in here if name not in self.found.missing]
            first = turn % len(names) if names else 0
            for name in names[first:] + names[:first]:
                case = Case(name, network, ranks, batch)
                if self._known(case, turn):
                    continue
                try:
                    self._turn(self._host(name, here, ranks), here[name].arm, case, first=turn < 0)
                except JobError as error:
                    self._leave_out(name, str(error))
                    if host := self._hosts.pop(here[name].place, None):
                        host.end()

    def _known(self, case: Case, turn: int) -> bool:
        """Whether a turn was measured in an earlier part of this run."""
        if turn >= 0:
            return len(self.found.turns.get(case, ())) > turn
        wanted = self.settings.loss_steps if case.ranks == self.settings.ranks else 1
        return len(self.found.losses.get(case, ())) >= wanted

    def _host(self, name: str, here: Mapping[str, Running], ranks: int) -> PeerRanks:
        """Return the processes that an arm shares, started when it is the first to want them."""
        one = here[name]
        if one.place not in self._hosts:
            sharing = [
                other
                for other_name, other in here.items()
                if other.place == one.place and other_name not in self.found.missing
            ]
            self._hosts[one.place] = self._started(name, ranks, sharing)
        return self._hosts[one.place]

    def _begin(self, ranks: PeerRanks, arm: FrameworkArm, case: Case) -> None:
        s = self.settings
        pieces = {"pieces": case.ranks} if arm.alone else {}
        answers = ranks.ask(
            "begin",
            only=0 if arm.alone else None,
            name=case.network,
            weights=str(self._weights(case.network)),
            batch=case.batch * case.ranks if arm.alone else case.batch,
            side=s.side,
            classes=s.classes,
            shrink=s.shrink,
            options={**arm.options, **pieces, "kind": arm.kind, "rate": s.learning_rate},
            alone=arm.alone,
        )
        self.found.versions[case.arm] = answers[0]["version"]

    def _turn(self, ranks: PeerRanks, arm: FrameworkArm, case: Case, *, first: bool) -> None:
        s = self.settings
        only = 0 if arm.alone else None
        self._begin(ranks, arm, case)
        losses = turn_of(ranks.ask("steps", only, count=1)).losses
        if first:
            if case.ranks == s.ranks:
                losses += turn_of(ranks.ask("steps", only, count=s.loss_steps - 1)).losses
            self.found.losses[case] = losses
        else:
            turn = turn_of(ranks.ask("steps", only, count=s.steps))
            self.found.turns.setdefault(case, []).append(turn)
        ranks.ask("end", only)
        self._save()

    def _leave_out(self, name: str, why: str) -> None:
        self.found.missing[name] = why
        self._say(f"{name} is left out: {why}")
