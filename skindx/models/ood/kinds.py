"""All detectors by their kind."""

from typing import Annotated

from pydantic import Field

from skindx.models.ood.energy import Energy, EnergySettings
from skindx.models.ood.fitted import Fitted
from skindx.models.ood.image import ImageDistance, ImageSettings
from skindx.models.ood.image_mixture import ImageMixture, ImageMixtureSettings
from skindx.models.ood.knn import Knn, KnnSettings
from skindx.models.ood.layers import Gram, GramSettings, LayersSettings, MahalanobisLayers
from skindx.models.ood.mahalanobis import Mahalanobis, MahalanobisSettings
from skindx.models.ood.react import ReAct, ReActSettings
from skindx.models.ood.relative import RelativeMahalanobis, RelativeSettings
from skindx.models.ood.vim import ViM, ViMSettings

AnyDetector = Annotated[
    EnergySettings
    | GramSettings
    | ImageMixtureSettings
    | ImageSettings
    | KnnSettings
    | LayersSettings
    | MahalanobisSettings
    | ReActSettings
    | RelativeSettings
    | ViMSettings,
    Field(discriminator="kind"),
]

DETECTORS: dict[str, type[Fitted]] = {
    "energy": Energy,
    "gram": Gram,
    "image": ImageDistance,
    "image_mixture": ImageMixture,
    "knn": Knn,
    "mahalanobis": Mahalanobis,
    "mahalanobis_layers": MahalanobisLayers,
    "react": ReAct,
    "relative_mahalanobis": RelativeMahalanobis,
    "vim": ViM,
}

DEFAULT: tuple[AnyDetector, ...] = (MahalanobisSettings(), ImageMixtureSettings())
"""What a bundle gets: chosen by `skindx bench ood` on left-out classes and painted images."""
