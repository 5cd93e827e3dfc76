"""How finished members become an ensemble: soups, members of other runs, combiners."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.models.ensemble.weighting import Space

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"
"""Of a member: it is the name of a folder as well, and those have 255 characters at most."""


class Mean(Settings):
    """All members weigh the same."""

    kind: Literal["mean"] = "mean"
    space: Space = "probability"


class Weighted(Settings):
    """Weights that make the truth of the validation images likeliest."""

    kind: Literal["weighted"] = "weighted"
    space: Space = "probability"
    prior: float = Field(20.0, gt=0, le=1e9)
    """Strength of the prior for equal weights, as a number of images."""


class Greedy(Settings):
    """Greedy selection with replacement (Caruana et al. 2004); who is not chosen is left out."""

    kind: Literal["greedy"] = "greedy"
    space: Space = "probability"
    rounds: int = Field(20, ge=1, le=200)


class Vote(Settings):
    """A majority vote; the mean probability decides ties."""

    kind: Literal["vote"] = "vote"


class Auto(Settings):
    """The combiner that does best on validation images it was not fitted on; see `combiners.py`."""

    kind: Literal["auto"] = "auto"


Combiner = Mean | Weighted | Greedy | Vote
Combine = Annotated[Combiner | Auto, Field(discriminator="kind")]


class EnsembleSettings(Settings):
    """How the members are combined."""

    combine: Combine = Mean()


class SoupSettings(Settings):
    """A member without a training of its own: the mean of others' weights (Wortsman et al. 2022).

    Its ingredients are of one architecture and started from the same weights; one that keeps
    `snapshots` brings all of them.
    """

    name: str = Field(pattern=NAME)
    of: tuple[str, ...] = Field(min_length=1)
    """Names of members, its ingredients."""
    kind: Literal["uniform", "greedy"] = "uniform"
    """greedy: best first, each stays only if balanced accuracy on validation does not fall."""
    instead: bool = True
    """Remove the ingredients from the ensemble, so that a soup costs one network."""


class ReusedSettings(Settings):
    """A member that lies in another run, trained there on the same dataset."""

    run: Path
    member: str = Field(pattern=NAME)
    name: str | None = Field(None, pattern=NAME)
    """Its name here; none: the same."""
    config: Path | None = None
    """The settings to train that run with, if it was not started yet."""

    @property
    def known_as(self) -> str:
        """Its name in this run."""
        return self.name or self.member
