"""Heads as kinds: what makes the logits of pooled features, chosen by `head.kind`."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from skindx.core.kinds import Family
from skindx.core.settings_base import Settings

_CODE = "skindx.models.classifier.heads"


class HeadSettings(Settings):
    """Base of a head's settings; `network` names the function that makes it."""

    kind: str
    network: ClassVar[str]

    @property
    def solved(self) -> bool:
        """True for a head that is computed from the training features, without steps."""
        return False


class LinearHead(HeadSettings):
    """One linear layer."""

    kind: Literal["linear"] = "linear"
    network: ClassVar = f"{_CODE}:linear"
    solver: Literal["steps", "exact"] = "steps"
    """exact: scikit-learn's logistic regression on a frozen trunk, its C chosen on validation;
    steps: by the recipe."""

    @property
    def solved(self) -> bool:
        return self.solver == "exact"


class MlpHead(HeadSettings):
    """One hidden layer with a GELU."""

    kind: Literal["mlp"] = "mlp"
    network: ClassVar = f"{_CODE}:mlp"
    width: int = Field(512, ge=8, le=8192)
    """Hidden units."""


class KnnHead(HeadSettings):
    """The nearest training images vote by their cosine (Wu et al. 2018, arXiv 1805.01978, eq. 7).

    Nothing is trained; the features of the training images are the weights.
    """

    kind: Literal["knn"] = "knn"
    network: ClassVar = f"{_CODE}:knn"
    neighbours: int = Field(20, ge=1, le=1000)
    temperature: float = Field(0.07, gt=0, le=10)
    """A vote weighs exp(cosine / temperature)."""
    rows: int = Field(0, ge=0, le=10_000_000)
    """Images in the bank; found out when it is made."""

    @property
    def solved(self) -> bool:
        """Whether the weights are not trained but are the training features."""
        return True


class PrototypeHead(HeadSettings):
    """The cosine to each class's mean feature (Snell et al. 2017, arXiv 1703.05175).

    Features are centred first (Wang et al. 2019, arXiv 1911.04623, section 3).
    """

    kind: Literal["prototypes"] = "prototypes"
    network: ClassVar = f"{_CODE}:prototypes"
    temperature: float = Field(0.07, gt=0, le=10)

    @property
    def solved(self) -> bool:
        """Whether the weights are not trained but are the classes' mean features."""
        return True


HEADS = Family(
    "head",
    "skindx.heads",
    {
        "linear": "skindx.models.classifier.head_kinds:LinearHead",
        "mlp": "skindx.models.classifier.head_kinds:MlpHead",
        "knn": "skindx.models.classifier.head_kinds:KnnHead",
        "prototypes": "skindx.models.classifier.head_kinds:PrototypeHead",
    },
)


def _by_kind(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


if TYPE_CHECKING:
    Head = HeadSettings
else:
    Head = Annotated[HEADS.union(), BeforeValidator(_by_kind)]
"""In a file its kind alone, as in `head: mlp`, or with settings."""
