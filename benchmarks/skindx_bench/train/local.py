"""Local steps beside other exchanges: what they cost in accuracy, and save in bytes and time."""

import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from skindx.core.atomic_files import write_json
from skindx.core.settings_base import Settings
from skindx.core.untrusted import read_json
from skindx.data.layout import MANIFEST
from skindx_bench.harness.netlab import Link, NetLab, require
from skindx_bench.harness.ranks import EmulatedCluster
from skindx_bench.harness.result import MEANS, Figure, Result, median
from skindx_bench.harness.training import end_on_sigterm, preset
from skindx_bench.train.convergence_pairs import overlay, student_interval
from skindx_bench.train.second_order import write_painted

BASELINE, OURS, LONGER, APART = "dense", "local", "local-longer", "apart"
_WAYS = ("member0", "soup", "ensemble")
"""What ranks that trained apart can answer with: one of them, their mean weights or answers."""
_OF_THE_ARM = ("rates", "seeds", "cases")
_WORKER = "skindx_bench.train.local_rank"
_NO_LIMIT = Link(40_000)
_BLOCKS = 5

SMALLEST = (
    "change=['cases={painted: {painted: 240, most: 24, images: 64, rates: [0.03], training: "
    "{members: [{name: m, model: test_resnet, preprocess: {size: 32}}]}}}', "
    "'training.recipe.epochs=1', 'training.recipe.batch=16', 'arms.local.exchange.steps=2', "
    "'arms.apart.cases=[painted]']",
    *("ranks=2", "seeds=[0, 1]", "rates_mbit=[1000]", "steps=10", "arms=[dense, local, apart]"),
)


class Case(Settings):
    """A network and its images."""

    dataset: Path | None = None
    """None: painted images."""
    painted: int = Field(2000, ge=40)
    """How many are painted."""
    most: int = Field(ge=1)
    """Images of a class; further ones are left out, of all splits."""
    images: int = Field(ge=1)
    """Of a fold's training images so many are taken."""
    rates: tuple[float, ...] = Field(min_length=1)
    """Learning rates that each arm is tuned over, if it has no `rates` of its own."""
    training: dict[str, Any]
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Further settings of local steps, looked at on the first seed's validation images alone."""


class LocalStudy(Settings):
    """What all trainings share, the cases, and what each arm has instead."""

    training: dict[str, Any]
    cases: dict[str, Case]
    arms: dict[str, dict[str, Any]]


class Config(Settings):
    """Arms and repetitions; finished trainings and timings in `out` are reused."""

    config: Path = preset("local")
    """The study: `training`, `cases`, `arms`."""
    change: tuple[str, ...] = ()
    """Changes of the study, as `--set` has them."""
    out: Path = Path("runs/local")
    parts: tuple[Literal["accuracy", "steps", "variants"], ...] = ("accuracy", "steps", "variants")
    only: tuple[str, ...] = ()
    """Cases; none: all of the study."""
    arms: tuple[str, ...] = ("dense", "local", "local-longer", "gtopk", "apart", "powersgd")
    seeds: tuple[int, ...] = Field((0, 1, 2, 3, 4), min_length=2)
    """Each is tested on a fold of its own."""
    tuned_on: int = Field(2, ge=1)
    """So many of the first seeds choose an arm's learning rate, by their validation images; of an
    arm with fewer seeds the first one."""
    folds: int = Field(5, ge=2)
    ranks: int = Field(4, ge=2, le=32)
    rates_mbit: tuple[float, ...] = Field((100, 1000), min_length=1)
    """Links for which steps are timed."""
    steps: int = Field(100, ge=10)
    """That are timed."""
    limit_s: float = Field(15, gt=0)
    """What an arm's steps on a link take at most, if two blocks of them do not take longer."""
    at_most: int = Field(1_000_000, ge=0)
    """Stop after so many new trainings and timings; the next call goes on."""
    margin: float = Field(0.5, ge=0)
    """So many points below the dense exchange's accuracy count as having reached it."""

    @model_validator(mode="after")
    def _baseline_first(self) -> Self:
        if self.arms[:1] != (BASELINE,) or len(set(self.arms)) < len(self.arms):
            raise ValueError(f"arms begins with {BASELINE}, and names each arm once")
        return self


class _EnoughError(Exception):
    """So many new rows were asked for."""


Row = dict[str, Any]


@dataclass
class CaseRows:
    """The rows of one case, kept in files, and the ranks that make them, from `with` on."""

    settings: Config
    study: LocalStudy
    name: str
    left: list[int]
    """How many new rows may still be made, over all cases."""
    chosen: dict[str, float] = field(default_factory=dict)
    """Arm -> its learning rate."""
    trained: dict[str, list[Row]] = field(default_factory=dict)
    """Arm -> a row for each seed."""
    timed: dict[tuple[str, float], Row] = field(default_factory=dict)
    """Arm and Mbit/s -> seconds and bytes of its steps."""
    looked_at: dict[str, Row] = field(default_factory=dict)
    """Variant -> its row."""
    _ranks: EmulatedCluster | None = None
    _open: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def case(self) -> Case:
        return self.study.cases[self.name]

    def accuracy(self) -> None:
        """Tune each arm on the first seeds' validation images, and train it on all seeds."""
        for arm in self.settings.arms:
            if self.name not in self.study.arms[arm].get("cases", (self.name,)):
                continue
            rates = self.study.arms[arm].get("rates", self.case.rates)
            self.chosen[arm] = max(rates, key=partial(self._score, arm)) if rates[1:] else rates[0]
            rows = self.trained.setdefault(arm, [])
            seeds = self.settings.seeds
            for seed in seeds[: self.study.arms[arm].get("seeds", len(seeds))]:
                rows.append(self._trained(arm, self.chosen[arm], seed))

    def variants(self) -> None:
        """Train the variants once, at the rate that local steps chose."""
        rate = self.chosen.get(OURS, self.case.rates[0])
        for name in self.case.variants:
            self.looked_at[name] = self._trained(name, rate, self.settings.seeds[0])

    def steps(self) -> None:
        """Time the steps of each arm on each link."""
        for arm in self.settings.arms:
            if arm == LONGER:  # its steps are those of `local`
                continue
            raw = self._raw(arm, self.case.rates[0], self.settings.seeds[0])
            exchange = raw.get("exchange", {})
            if "warmup" in exchange:
                raw = overlay(raw, {"exchange": {"warmup": []}})
            length = 0 if arm == APART else exchange.get("steps", 0)
            block = length or self.settings.steps // _BLOCKS
            asked = {
                "blocks": math.ceil(self.settings.steps / block),
                "block": block,
                "rounds": bool(length),
                "limit_s": self.settings.limit_s,
            }
            for mbit in self.settings.rates_mbit:
                key, file = {"raw": raw, "mbit": mbit, **asked}, f"steps-{arm}-{mbit:g}"
                self.timed[arm, mbit] = self._row(file, key, "steps", Link(mbit), raw=raw, **asked)

    def _score(self, arm: str, rate: float) -> float:
        way = "ensemble_val" if arm == APART else "val"
        few = "seeds" in self.study.arms[arm]
        seeds = self.settings.seeds[: 1 if few else self.settings.tuned_on]
        return statistics.fmean(self._trained(arm, rate, seed)[way][-1] for seed in seeds)

    def _trained(self, arm: str, rate: float, seed: int) -> Row:
        raw = self._raw(arm, rate, seed)
        key = {"raw": raw, "images": self.case.images, "most": self.case.most}
        file = f"{arm}-{rate:g}-seed{seed}"
        return self._row(file, key, "train", _NO_LIMIT, raw=raw, apart=arm == APART)

    def _raw(self, arm: str, rate: float, seed: int) -> Row:
        changes = self.study.arms.get(arm)
        if changes is None:
            changes = {"exchange": self.case.variants[arm]}
        changes = {key: change for key, change in changes.items() if key not in _OF_THE_ARM}
        raw = overlay(overlay(self.study.training, self.case.training), changes)
        raw = overlay(raw, {"recipe": {"learning_rate": rate}})
        return {**raw, "members": [{**raw["members"][0], "seed": seed}]}

    def _row(self, file: str, key: Row, do: str, link: Link, **arguments: Any) -> Row:
        """Return a kept row, or make it."""
        path = self.settings.out / self.name / f"{file}.json"
        kept: Row = read_json(path) if path.is_file() else {}
        if kept.get("key") != key:
            if not self.left[0]:
                raise _EnoughError
            self.left[0] -= 1
            kept = {"key": key, **self._cluster(link).ask(do, **arguments)[0]}
            write_json(path, kept)
        return kept

    def _cluster(self, link: Link) -> EmulatedCluster:
        """Return the ranks, started when they are first needed, behind such links."""
        case, ranks = self.case, self.settings.ranks
        if self._ranks is None:
            folder = case.dataset
            if folder is None:
                side = case.training["members"][0]["preprocess"]["size"]
                folder = self.settings.out / f"painted-{case.painted}-{side}"
                if not (folder / MANIFEST).exists():
                    write_painted(folder, case.painted, side)
            job = {"dataset": str(folder), "folds": self.settings.folds}
            job |= {"images": case.images, "most": case.most}
            lab = self._open.enter_context(NetLab(ranks, link))
            self._ranks = self._open.enter_context(EmulatedCluster(lab, ranks, job, _WORKER))
        self._ranks.lab.limit(link)
        return self._ranks

    def figures(self) -> dict[str, Figure]:
        """Return the figures of what is there."""
        made: dict[str, Figure] = {}
        for name, rows, way in self._answers():
            base = self.trained[BASELINE]
            change = [a[f"{way}test"][-1] - b["test"][-1] for a, b in zip(rows, base, strict=False)]
            if len(change) > 1 and name != BASELINE:
                gain = Figure.of(student_interval(change), "points", len(change))
                made[f"{self.name}_{name}_minus_dense_balanced"] = gain
        for mbit in self.settings.rates_mbit:
            if (ours := self.timed.get((OURS, mbit))) is None:
                continue
            for arm in self.settings.arms:
                theirs = self.timed.get((arm, mbit))
                if theirs and arm not in (OURS, APART) and mbit == self.settings.rates_mbit[0]:
                    made[f"{self.name}_bytes_less_than_{arm}"] = _times_less(ours, theirs)
            longest = self.trained.get(LONGER) or self.trained.get(OURS, [])
            base = self.trained.get(BASELINE, [])
            for name, rows, way in self._answers():
                if name in (OURS, LONGER) or (APART in name and not name.endswith("ensemble")):
                    continue
                both = [self.reached(longest, "", ours)]
                if step := self.timed.get((name.split("_")[0], mbit)):
                    both.append(self.reached(rows, way, step))
                comes = any(self._epoch(*pair) for pair in zip(longest, base, strict=False))
                if comes and len(both) == 2 and min(map(len, both)) > 1:
                    made[f"{self.name}_local_over_{name}_{mbit:g}mbit"] = _sooner(*both)
        return made

    def _answers(self) -> Iterator[tuple[str, list[Row], str]]:
        """Give what each arm answers with: a name, its rows, and how they call its figures."""
        for arm, rows in self.trained.items():
            if arm == APART:
                yield from ((f"{APART}_{way}", rows, f"{way}_") for way in _WAYS)
            else:
                yield arm, rows, ""

    def reached(self, rows: Sequence[Row], way: str, timed: Row) -> list[float]:
        """Return by seed after how many seconds the dense exchange's accuracy was reached.

        It is the mean of that on validation and on test images, less the margin. What never comes
        to it counts with its whole training. A seed is paired with a block of timed steps.
        """
        steps, seconds = math.ceil(self.case.images / self._recipe["batch"]), []
        for seed, (row, base) in enumerate(zip(rows, self.trained[BASELINE], strict=False)):
            epochs = self._epoch(row, base, way) or len(row[f"{way}val"])
            seconds.append(epochs * steps * timed["step_s"][seed % len(timed["step_s"])])
        return seconds

    def _epoch(self, row: Row, base: Row, way: str = "") -> int | None:
        """Return after which epoch a training came to that accuracy; None: never."""
        pairs = zip(row[f"{way}val"], row[f"{way}test"], strict=True)
        target = (base["val"][-1] + base["test"][-1]) / 2 - self.settings.margin
        return next((epoch for epoch, x in enumerate(pairs, 1) if sum(x) / 2 >= target), None)

    @property
    def _recipe(self) -> Row:
        recipe: Row = overlay(self.study.training, self.case.training)["recipe"]
        return recipe

    def about(self) -> str:
        """Say what the case trains, on what and how long."""
        case, recipe, member = self.case, self._recipe, self.case.training["members"][0]
        start = "given" if "weights" in member else "random"
        images = case.dataset.resolve().parent.name if case.dataset else "painted skin"
        return (
            f"{self.name}: {member['model']} at {member['preprocess']['size']} px from {start} "
            f"weights, {case.images} training images of {images}, {recipe['epochs']} epochs, "
            f"batch {recipe['batch']} over all ranks, learning rates "
            f"{', '.join(f'{rate:g}' for rate in case.rates)}"
        )

    def plain(self) -> dict[str, Row]:
        """Return plain values of each arm and variant for the JSON."""
        made: dict[str, Row] = {}
        for arm in self.settings.arms:
            exchange = self.study.arms[arm].get("exchange", {"kind": "dense"})
            kept = self.trained.get(arm, [])
            rows = [{k: v for k, v in row.items() if k != "key"} for row in kept]
            made[arm] = {
                "rate": self.chosen.get(arm),
                "exchange": exchange,
                "seeds": rows,
                "steps": {},
            }
            for mbit in self.settings.rates_mbit:
                if row := self.timed.get((arm, mbit)):
                    made[arm]["steps"][f"{mbit:g}"] = {
                        "seconds": median(row["step_s"], "s").value,
                        "bytes": sum(row["sent"]) / len(row["sent"]) / row["block"],
                        "steps": len(row["sent"]) * row["block"],
                    }
        for name, row in self.looked_at.items():
            made[name] = {"exchange": self.case.variants[name], "val": row["val"]}
        return {f"{self.name}: {name}": row for name, row in made.items()}


def _times_less(ours: Row, theirs: Row) -> Figure:
    """Return how many times less local steps send, block by block."""
    a, b = ([sent / row["block"] for sent in row["sent"]] for row in (ours, theirs))
    return median([many / few for few, many in zip(a, b, strict=False)], "times")


def _sooner(ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    """Return the geometric mean of paired ratios with Student's interval of their logarithm."""
    logs = [math.log(b / a) for a, b in zip(ours, theirs, strict=False)]
    mean = student_interval(logs)
    low, middle, high = (math.exp(x) for x in (mean.low, mean.value, mean.high))
    return Figure(middle, "×", len(logs), (low, high))


def run(settings: Config) -> Result:
    """Train and time what is missing, and compare."""
    end_on_sigterm()
    require()
    study = LocalStudy.load(settings.config, settings.change)
    left, stopped = [settings.at_most], ""
    cases = [CaseRows(settings, study, name, left) for name in settings.only or study.cases]
    for case in cases:
        with case:
            for part in settings.parts:
                try:
                    getattr(case, part)()
                except _EnoughError:
                    stopped = f"stopped after {settings.at_most} new rows; call it again to go on"
    return Result(
        "local",
        {key: figure for case in cases for key, figure in case.figures().items()},
        notes=_notes(settings, cases),
        models={key: row for case in cases for key, row in case.plain().items()},
        headings=MEANS,
        partial=stopped,
    )


def _notes(settings: Config, cases: Sequence[CaseRows]) -> tuple[str, ...]:
    notes = [
        f"{settings.ranks} ranks, {len(settings.seeds)} seeds, each tested on whole groups: a fold "
        f"of its own of {settings.folds}. Every arm sees the same images in as many steps, unless "
        f"its epochs are named; the validation images of the first {settings.tuned_on} seeds chose "
        "its learning rate (where it has fewer seeds, those of the first one). "
        f"{'; '.join(case.about() for case in cases)}.",
        "X_minus_dense_balanced: balanced accuracy on test images, mean of the seeds, paired, with "
        "Student's 95 % interval. apart: ranks that never meet; of them one member, their averaged "
        "weights with batch-norm statistics taken again (soup), and their averaged answers "
        "(ensemble, which takes as many times longer to answer as there are ranks).",
    ]
    if any(case.timed for case in cases):
        notes += [
            "bytes_less_than_X: bytes that a rank's interface sent in a step, X's over those of "
            "local steps; headers, acknowledgements and the flags of each step are in them. Median "
            f"and quartiles of blocks of steps at {settings.rates_mbit[0]:g} Mbit/s.",
            "local_over_X: seconds to the dense exchange's last accuracy (mean of validation and "
            f"test images) less {settings.margin:g} points, X's over those of local steps (of "
            f"{LONGER}, where it was trained): epochs until then, from a training without an "
            "emulated link, times the seconds of a step on the link; geometric mean of the seeds "
            "with Student's interval. What never comes to it counts with its whole training, which "
            "flatters it; where no training by local steps comes to it, there is no figure. All "
            "ranks share this machine's cores: on machines of their own computing would take less, "
            "and the network more of the time.",
        ]
    return tuple(notes)
