"""The compared forms of parallelism, a plan's prices of them, and products on a cube of ranks."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

from pydantic import Field

from skindx.core.cost.profile import Profile
from skindx.core.settings_base import Settings
from skindx.metrics.share_intervals import share_interval
from skindx_bench.harness.netlab import Link, NetLab
from skindx_bench.harness.ranks import EmulatedCluster
from skindx_bench.harness.result import Figure, median, ratio
from skindx_methods.plan.choices import Choice
from skindx_methods.plan.cluster import Cluster
from skindx_methods.plan.estimate import Estimate, Machine, estimate
from skindx_methods.plan.profiles import Profiles
from skindx_methods.plan.strategy_kinds import strategy_of


class Config(Settings):
    """AlexNet on `ranks`, each in a network namespace of its own."""

    parts: tuple[Literal["speed", "small", "accuracy", "cube"], ...] = (
        "speed",
        "small",
        "accuracy",
        "cube",
    )
    ranks: int = Field(4, ge=2, le=16)
    precision: Literal["fp32", "bf16"] = "fp32"
    """In which all forms compute; weights stay fp32."""
    rate_mbit: float = Field(1000, gt=0)
    """Of each rank's link."""
    batch: int = Field(32, ge=2)
    """Images of a rank in a step."""
    width: int = Field(4096, ge=16)
    """Of the two hidden linear layers."""
    side: int = Field(128, ge=32)
    classes: int = Field(2, ge=2)
    small_side: int = Field(56, ge=32)
    """Side at which convolutions are cheap, and one rank may win."""
    small_classes: int = Field(200, ge=2)
    rounds: int = Field(3, ge=2)
    plan_s: float = Field(30, gt=0)
    """Seconds for the links, and for the times of each network, that a plan is made of."""
    steps: int = Field(3, ge=1)
    """Timed in each round, after one that is not."""
    density: float = Field(0.001, gt=0, le=1)
    """Of gTop-k."""
    rank: int = Field(4, ge=1)
    """Of PowerSGD."""
    epochs: int = Field(8, ge=1)
    """Of the trainings whose accuracy is compared."""
    images: int = Field(2560, ge=32)
    """Painted images to learn from."""
    accuracy_batch: int = Field(16, ge=2)
    """Images of a rank in a step of these trainings."""
    accuracy_width: int = Field(256, ge=16)
    accuracy_side: int = Field(64, ge=32)
    seeds: int = Field(3, ge=2)
    """Trainings of each form."""
    cube_side: Literal[2, 3] = 2
    """Of the cube of ranks: eight, or 27."""
    cube_rows: int = Field(3600, ge=36, multiple_of=36)
    """Images times tokens that two products take."""
    cube_width: int = Field(1008, ge=36, multiple_of=36)
    """Of what goes in, of what is between the two and of what comes out."""


DATA: Mapping[str, Any] = {"kind": "data"}


@dataclass(frozen=True)
class ParallelForm:
    """One form of parallelism."""

    name: str
    exchange: dict[str, Any]
    parallel: Mapping[str, Any] = field(default_factory=lambda: DATA)
    """`engine.parallel`."""
    exact: bool = True
    """The steps are those of one process, but for rounding and what dropout draws."""
    priced: tuple[str, dict[str, Any]] | None = None
    """Strategy and options of a plan; none: no plan prices it."""

    @property
    def baseline(self) -> bool:
        """It sends whole gradients, as data-parallel frameworks do."""
        return (
            self.exact and self.parallel["kind"] == "data" and self.exchange["kind"] != "factored"
        )

    @property
    def steady(self) -> dict[str, Any]:
        """The exchange as it is after its warm-up."""
        sparse = self.exchange["kind"] == "gtopk"
        return {**self.exchange, "warmup": []} if sparse else self.exchange


def arms_of(settings: Config) -> list[ParallelForm]:
    """Return all forms."""
    fused = {"kind": "fused", "tune": False}
    bf16 = {**fused, "wire": "bf16"}
    lossy: dict[str, dict[str, Any]] = {
        "gtopk": {"density": settings.density, "warmup": []},
        "powersgd": {"rank": settings.rank},
    }
    gtopk = {"kind": "gtopk", "density": settings.density}
    owt = {"kind": "owt"}
    return [
        ParallelForm("dense", {"kind": "dense"}, priced=("dense", {})),
        ParallelForm("fused", fused, priced=("fused", {"tune": False})),
        ParallelForm("bf16", bf16, priced=("fused", {"tune": False, "wire": "bf16"})),
        ParallelForm("factored", {"kind": "factored"}, priced=("factored", {})),
        ParallelForm("gtopk", gtopk, exact=False, priced=("gtopk", lossy["gtopk"])),
        ParallelForm(
            "powersgd",
            {"kind": "powersgd", **lossy["powersgd"]},
            exact=False,
            priced=("powersgd", lossy["powersgd"]),
        ),
        ParallelForm("owt", fused, owt, priced=("owt", {})),
        *(
            ParallelForm(
                f"owt_{scheme}",
                fused,
                {**owt, "scheme": scheme},
                priced=("owt", {"scheme": scheme}),
            )
            for scheme in ("b", "c")
        ),
        ParallelForm("owt_gtopk", gtopk, owt, exact=False),
    ]


class Predictions:
    """Prices forms for one network on one cluster."""

    def __init__(
        self, profiles: Sequence[dict[str, Any]], cluster: dict[str, Any], batch: int
    ) -> None:
        """Take the answers of all ranks; `batch` are the images of all of them in a step."""
        found = sorted(
            (Profile.model_validate(raw) for raw in profiles),
            key=lambda profile: profile.at[-1].compute_s,
        )
        self._profile, self._batch = found[len(found) // 2], batch
        self._machine = Machine(
            Profiles(device="cpu", networks=(self._profile,)), Cluster.model_validate(cluster)
        )

    def of(self, name: str, options: Mapping[str, Any] | None = None) -> Estimate:
        """Return the price of a strategy among all ranks."""
        cluster = self._machine.cluster
        choice = Choice(
            strategy_of(name, options), cluster.nodes, cluster.ranks_per_node, self._batch
        )
        return estimate(self._profile, choice, self._machine)

    def arms(self, arms: Sequence[ParallelForm]) -> dict[str, float]:
        """Return the seconds of a step of all forms that have a price."""
        return {arm.name: self.of(*arm.priced).step_s for arm in arms if arm.priced}


def agreement(
    predicted: Mapping[str, float], measured: Mapping[str, Sequence[float]]
) -> list[bool]:
    """Return, for each pair of forms with a clear order, whether the plan has that order.

    The order is clear where one form's fastest round is slower than the other's slowest.
    """
    right = []
    for one, other in combinations(predicted, 2):
        faster, slower = sorted((one, other), key=lambda name: min(measured[name]))
        if max(measured[faster]) < min(measured[slower]):
            right.append(predicted[faster] < predicted[slower])
    return right


def agreement_figure(right: Sequence[bool]) -> Figure:
    """Return the share of pairs in the plan's order, with a 95 % interval as of single pairs."""
    interval = share_interval(right, range(len(right)))
    return Figure.of(interval, "of the pairs", len(right))


WORKER = "skindx_bench.cluster.parallel_rank"
_FORMS = ("line", "keep", "again")


def compare(settings: Config) -> dict[str, Figure]:
    """Let 1-D and both kinds of 3-D products take turns on an emulated cluster."""
    s, ranks = settings, settings.cube_side**3
    job = {"rows": s.cube_rows, "width": s.cube_width}
    found: dict[str, list[list[dict[str, Any]]]] = {form: [] for form in _FORMS}
    with (
        NetLab(ranks, Link(s.rate_mbit)) as lab,
        EmulatedCluster(lab, ranks, job, WORKER) as cluster,
    ):
        for form in _FORMS:
            cluster.ask("products", form=form)
        for turn in range(s.rounds):
            first = turn % len(_FORMS)
            for form in _FORMS[first:] + _FORMS[:first]:
                found[form].append(cluster.ask("products", form=form))
    seconds = {
        form: [max(float(answer["seconds"]) for answer in turn) for turn in turns]
        for form, turns in found.items()
    }
    sent = {
        form: [statistics.fmean(float(answer["sent"]) for answer in turn) for turn in turns]
        for form, turns in found.items()
    }
    return {
        "cube_over_line": ratio(seconds["keep"], seconds["line"]),
        "cube_again_over_line": ratio(seconds["again"], seconds["line"]),
        **{f"{form}_products_s": median(taken, "s") for form, taken in seconds.items()},
        **{
            f"{form}_products_mb": median([value / 1e6 for value in values], "MB")
            for form, values in sent.items()
        },
        **{
            f"{form}_fewer_bytes": median(
                [line / own for line, own in zip(sent["line"], sent[form], strict=True)],
                "times fewer",
            )
            for form in ("keep", "again")
        },
        **{
            f"{form}_fewer_bytes_by_formula": median([_fewer(s, form)] * 2, "times fewer")
            for form in ("keep", "again")
        },
    }


def _fewer(s: Config, form: str) -> float:
    """Return how many times fewer bytes two products send on the cube."""
    q, ranks = s.cube_side, s.cube_side**3
    x, weight = s.cube_rows * s.cube_width, s.cube_width**2
    line = 4 * (ranks - 1) / ranks * x
    kept = 2 * (2 * x + weight) * (q - 1) / q**3
    again = (x + weight) * (q - 1) / q**3
    return line / (2 * (kept + (again if form == "again" else 0)))
