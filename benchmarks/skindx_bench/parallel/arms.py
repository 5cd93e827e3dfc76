"""The forms that the bench compares: what is split, and how gradients are exchanged."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from skindx_bench.parallel.settings import Config

DATA: Mapping[str, Any] = {"kind": "data"}


@dataclass(frozen=True)
class Arm:
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
    def split(self) -> bool:
        """More is shared out than images."""
        return str(self.parallel["kind"]) != "data"

    @property
    def baseline(self) -> bool:
        """It sends whole gradients, as data-parallel frameworks do."""
        return self.exact and not self.split and self.exchange["kind"] != "factored"

    @property
    def steady(self) -> dict[str, Any]:
        """The exchange as it is after its warm-up."""
        sparse = self.exchange["kind"] == "gtopk"
        return {**self.exchange, "warmup": []} if sparse else self.exchange


def arms_of(settings: Config, degrees: Mapping[str, int]) -> list[Arm]:
    """Return all forms; `degrees` is what a plan splits."""
    fused = {"kind": "fused", "tune": False}
    bf16 = {**fused, "wire": "bf16"}
    lossy: dict[str, dict[str, Any]] = {
        "gtopk": {"density": settings.density, "warmup": []},
        "powersgd": {"rank": settings.rank},
    }
    gtopk = {"kind": "gtopk", "density": settings.density}
    owt, model = {"kind": "owt"}, {"kind": "model", "stages": settings.ranks}
    planned = {"kind": "operators", "degrees": dict(degrees)}
    return [
        Arm("dense", {"kind": "dense"}, priced=("dense", {})),
        Arm("fused", fused, priced=("fused", {"tune": False})),
        Arm("bf16", bf16, priced=("fused", {"tune": False, "wire": "bf16"})),
        Arm("factored", {"kind": "factored"}, priced=("factored", {})),
        Arm("gtopk", gtopk, exact=False, priced=("gtopk", lossy["gtopk"])),
        Arm(
            "powersgd",
            {"kind": "powersgd", **lossy["powersgd"]},
            exact=False,
            priced=("powersgd", lossy["powersgd"]),
        ),
        Arm("owt", fused, owt, priced=("owt", {})),
        *(
            Arm(
                f"owt_{scheme}",
                fused,
                {**owt, "scheme": scheme},
                priced=("owt", {"scheme": scheme}),
            )
            for scheme in ("b", "c")
        ),
        Arm("owt_gtopk", gtopk, owt, exact=False),
        Arm("model", fused, model, priced=("model", {"stages": settings.ranks})),
        *(
            [Arm("planned", fused, planned, priced=("operators", {"degrees": dict(degrees)}))]
            if degrees
            else []
        ),
    ]
