"""Heads on embeddings that a tower made elsewhere: they look at an image by its SHA-256.

B = batch, D = dimensions, C = classes
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from skindx.core.errors import UserError
from skindx.core.settings_base import Settings
from skindx.core.state_checks import UnfitStateError, check_finite, check_tensors
from skindx.data.embedding_files import MOST_DIMENSIONS, EmbeddingRows
from skindx.data.manifest import Record
from skindx.models.classifier.classifier import Classifier
from skindx.models.classifier.head_kinds import Head
from skindx.models.classifier.heads import make_head
from skindx.models.classifier.network_setup import shapes_only
from skindx.models.classifier.preprocess import Preprocess
from skindx.models.ensemble import Member, Memo

EMBEDDINGS = "embeddings"
"""The `model` of a member without a network of its own."""
PLACE = "head"
"""Where its head stands."""


class EmbeddingsSpec(Settings):
    """A bundle's index entry of the embeddings that its heads read, and of what it lacks."""

    dimensions: int = Field(ge=1, le=MOST_DIMENSIONS)
    tower: str = Field("", max_length=200)
    """Who made them, in the words of whoever packed the bundle; empty: not stated."""

    @property
    def lacks(self) -> str:
        """What a bundle lacks and what to do, in a sentence that begins with the bundle."""
        tower = " ".join(self.tower.split())
        return (
            f"lacks the tower below its heads ({tower or 'not named'}, {self.dimensions} numbers "
            "an image), so it cannot look at a photo: pack it again where the tower is, by "
            "`skindx features evaluate … --tower TOWER`, or evaluate embeddings with `skindx "
            "features evaluate EMBEDDINGS DATA --bundle BUNDLE`."
        )


class EmbeddedImage(np.ndarray[Any, np.dtype[np.uint8]]):
    """Pixels H x W x 3 of an image, and the embedding that a tower elsewhere made of it."""

    embedding_D: NDArray[np.float32]

    @classmethod
    def attach(cls, pixels_HW3: NDArray[np.uint8], embedding_D: NDArray[np.float32]) -> Self:
        """Return the pixels with an embedding."""
        image = pixels_HW3.view(cls)
        image.embedding_D = embedding_D
        return image


class _HeadAlone(nn.Module):
    """What timm's networks have of methods, with embeddings for the last map."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def get_classifier(self) -> nn.Module:
        return self.head

    def forward_features(self, embeddings_BD: Tensor) -> Tensor:
        return embeddings_BD

    def forward_head(self, embeddings_BD: Tensor, *, pre_logits: bool = False) -> Tensor:
        logits_BC: Tensor = embeddings_BD if pre_logits else self.head(embeddings_BD)
        return logits_BC


class _EmbeddedClassifier(Classifier):
    def _normalised(self, images_BSS3: Tensor) -> Tensor:
        return images_BSS3


@dataclass(frozen=True)
class EmbeddedMember(Member):
    """A head that takes the embeddings of `EmbeddedImage` in the place of pixels."""

    rows: EmbeddingRows | None = None

    def prepared(
        self, records: Sequence[Record], images: list[NDArray[np.uint8]]
    ) -> list[NDArray[np.uint8]]:
        assert self.rows is not None
        return [
            EmbeddedImage.attach(image, self.rows.embedding(record.sha256))
            for record, image in zip(records, images, strict=True)
        ]

    def _squares(self, images: Sequence[NDArray[np.uint8]], memo: Memo) -> NDArray[Any]:
        embedded = [image for image in images if isinstance(image, EmbeddedImage)]
        assert len(embedded) == len(images)
        return np.stack([image.embedding_D for image in embedded])


def embedded_member(
    name: str,
    head: Head,
    state: Mapping[str, Tensor],
    rows: EmbeddingRows,
    *,
    classes: int,
    file: Path,
    temperature: float = 1.0,
) -> EmbeddedMember:
    """Return a member of the tensors PLACE.NAME of its head, whatever the place is.

    Raises UserError, which names the `file`, for tensors of another head or another length.
    """
    with shapes_only():
        expected = make_head(head, rows.dimensions, classes).state_dict()
    first = next(iter(expected))
    place = next((key.removesuffix(first) for key in state if key.endswith(f".{first}")), "")
    bare = {key.removeprefix(place): tensor for key, tensor in state.items()}
    try:
        check_tensors(bare, expected, "it")
        check_finite(bare, "it")
    except UnfitStateError as error:
        raise UserError(
            f"the head in {file} does not fit embeddings of {rows.dimensions} numbers and "
            f"{classes} classes ({error}); give the embeddings of the tower that the head was "
            "trained on."
        ) from None
    made = make_head(head, rows.dimensions, classes)
    made.load_state_dict(bare, assign=True)
    classifier = _EmbeddedClassifier(_HeadAlone(made), Preprocess()).eval()
    return EmbeddedMember(name, classifier, Preprocess(), temperature, rows=rows)


def embedded_decoder(
    decode: Callable[[bytes], NDArray[np.uint8]], rows: EmbeddingRows
) -> Callable[[bytes], NDArray[np.uint8]]:
    """Return a decoder of a dataset's files that also attaches their embeddings."""

    def decoded(data: bytes) -> NDArray[np.uint8]:
        return EmbeddedImage.attach(decode(data), rows.embedding(sha256(data).hexdigest()))

    return decoded
