"""Heads and the embedding index compute the same by a transposed copy as by NT."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from planted_products import ALWAYS_COPY

from skindx.models import nt_product as product
from skindx.models.classifier.head_kinds import KnnHead, PrototypeHead
from skindx.models.classifier.heads import make_head
from skindx.models.embedding_index import EmbeddingIndex, IndexRow
from skindx.models.nt_product import NtChoice, bound, nt_product, plain_nt

# N = images, D = dimensions, C = classes

N, D, C = 40, 24, 5


def _knn() -> NDArray[np.floating[Any]]:
    head = make_head(KnnHead(neighbours=7, rows=N), D, C).eval()
    head.bank_ND.copy_(torch.nn.functional.normalize(torch.randn(N, D), dim=1))
    head.labels_N.copy_(torch.arange(N) % C)
    return head(torch.randn(6, D)).numpy()


def _prototypes() -> NDArray[np.floating[Any]]:
    head = make_head(PrototypeHead(), D, C).eval()
    head.prototypes_CD.copy_(torch.nn.functional.normalize(torch.randn(C, D), dim=1))
    return head(torch.randn(6, D)).numpy()


def _index() -> NDArray[np.floating[Any]]:
    rows = [IndexRow(str(number), "a", number) for number in range(N)]
    embeddings = torch.nn.functional.normalize(torch.randn(N + 3, D), dim=1).numpy()
    index = EmbeddingIndex.of(rows, embeddings[:N], [b""] * N)
    return index.cosines(embeddings[N:])


@pytest.mark.parametrize("use", [_knn, _prototypes, _index])
@torch.no_grad()
def test_a_copy_gives_what_nt_gives(
    use: Callable[[], NDArray[np.floating[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, ...]] = []
    real = product._transposed

    def spy(b_NK: torch.Tensor, most_bytes: int | None) -> torch.Tensor | None:
        made.append(tuple(b_NK.shape))
        return real(b_NK, most_bytes)

    monkeypatch.setattr(product, "_transposed", spy)
    found = []
    for multiply in (plain_nt, nt_product(NtChoice(tree=ALWAYS_COPY))):
        torch.manual_seed(0)
        with bound(multiply):
            found.append(use())
    assert len(made) == 1
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)
