"""The last layers of a network: the pooling of CoCa, and what makes logits of pooled features.

B = batch, T = tokens, D = dimensions, E = width of the embedding, C = classes, W = hidden units,
N = rows of the bank, K = neighbours
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from skindx.core.kinds import load_object
from skindx.core.settings_base import Settings
from skindx.models.classifier.head_kinds import Head, KnnHead, LinearHead, MlpHead, PrototypeHead

_SMOOTH = 1e-3
"""Share of the neighbours' votes that is spread evenly, so that no class is impossible."""


class Mlp(nn.Module):
    """B x D in, B x C out, through W hidden units."""

    def __init__(self, dimensions: int, width: int, classes: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dimensions, width), nn.Linear(width, classes)

    def forward(self, features_BD: Tensor) -> Tensor:
        logits_BC: Tensor = self.fc2(functional.gelu(self.fc1(features_BD)))
        return logits_BC


class Knn(nn.Module):
    """B x D in, the logarithm of each class's share of the votes out."""

    bank_ND: Tensor
    labels_N: Tensor
    weights_C: Tensor

    def __init__(self, dimensions: int, settings: KnnHead, classes: int) -> None:
        super().__init__()
        self.settings = settings
        self.register_buffer("bank_ND", torch.zeros(settings.rows, dimensions))
        self.register_buffer("labels_N", torch.zeros(settings.rows, dtype=torch.int64))
        self.register_buffer("weights_C", torch.ones(classes))

    def forward(self, features_BD: Tensor) -> Tensor:
        unit_BD = functional.normalize(features_BD, dim=1)
        cosine_BN = functional.linear(unit_BD, self.bank_ND.to(unit_BD.dtype))
        most = min(self.settings.neighbours, len(self.bank_ND))
        near_BK, at_BK = cosine_BN.topk(most, dim=1)
        label_BK = self.labels_N[at_BK]
        vote_BK = (near_BK - near_BK[:, :1]).div(self.settings.temperature).exp()
        vote_BK = vote_BK * self.weights_C[label_BK].to(vote_BK.dtype)
        zero_BC = vote_BK.new_zeros(len(vote_BK), len(self.weights_C))
        score_BC = zero_BC.scatter_add(1, label_BK, vote_BK)
        share_BC = score_BC / score_BC.sum(1, keepdim=True)
        return ((1 - _SMOOTH) * share_BC + _SMOOTH / share_BC.shape[1]).log()


class Prototypes(nn.Module):
    """B x D in, cosines to C prototypes over a temperature out."""

    prototypes_CD: Tensor
    mean_D: Tensor

    def __init__(self, dimensions: int, settings: PrototypeHead, classes: int) -> None:
        super().__init__()
        self.temperature = settings.temperature
        self.register_buffer("prototypes_CD", torch.zeros(classes, dimensions))
        self.register_buffer("mean_D", torch.zeros(dimensions))

    def forward(self, features_BD: Tensor) -> Tensor:
        centred_BD = features_BD - self.mean_D.to(features_BD.dtype)
        unit_BD = functional.normalize(centred_BD, dim=1)
        return functional.linear(unit_BD, self.prototypes_CD.to(unit_BD.dtype)) / self.temperature


def linear(head: LinearHead, dimensions: int, classes: int) -> nn.Module:
    return nn.Linear(dimensions, classes)


def mlp(head: MlpHead, dimensions: int, classes: int) -> nn.Module:
    """Return two linear layers with a GELU between."""
    return Mlp(dimensions, head.width, classes)


def knn(head: KnnHead, dimensions: int, classes: int) -> nn.Module:
    return Knn(dimensions, head, classes)


def prototypes(head: PrototypeHead, dimensions: int, classes: int) -> nn.Module:
    """Return prototypes at zero."""
    return Prototypes(dimensions, head, classes)


def make_head(head: Head, dimensions: int, classes: int) -> nn.Module:
    """Return a head with nothing learned yet."""
    network: nn.Module = load_object(head.network)(head, dimensions, classes)
    return network


def head_place(net: nn.Module) -> str:
    """Return the name of a timm network's last layer. Raises ValueError for none, and for two."""
    last: Any = net.get_classifier()  # type: ignore[operator]
    place = next((name for name, module in net.named_modules() if module is last), "")
    if not place:
        raise ValueError("the network has no single last layer")
    return place


def put_head(net: nn.Module, head: Head, classes: int) -> None:
    """Put a head in the place of a timm network's last linear layer. Raises ValueError."""
    place = head_place(net)
    old = net.get_submodule(place)
    if not isinstance(old, nn.Linear):
        raise ValueError(f"head={head.kind} needs a network that ends in a linear layer")
    with old.weight.device:
        net.set_submodule(place, make_head(head, old.in_features, classes))


class AttentionPool(Settings):
    """How tokens become one embedding where timm has no such pooling."""

    width: int = Field(ge=8, le=8192)
    """Length of the embedding."""
    heads: int = Field(ge=1, le=128)


class QueryPool(nn.Module):
    """Tokens B x T x D in, embeddings B x E out: one learned query attends to all tokens.

    The pooling of CoCa's image tower (Yu et al. 2022, arXiv 2205.01917, section 3.2), as open_clip
    builds it: keys and values are the normalised tokens, and the answer is normalised. Of its
    queries only the first makes the embedding; no query sees another one, so others are left out.
    """

    def __init__(self, tokens: int, settings: AttentionPool) -> None:
        super().__init__()
        width = settings.width
        self.query = nn.Parameter(torch.zeros(1, width))
        nn.init.normal_(self.query)
        self.attn = nn.MultiheadAttention(
            width, settings.heads, kdim=tokens, vdim=tokens, batch_first=True
        )
        self.ln_q, self.ln_k, self.norm = (nn.LayerNorm(n) for n in (width, tokens, width))

    def forward(self, tokens_BTD: Tensor) -> Tensor:
        keys_BTD = self.ln_k(tokens_BTD)
        query_B1E = self.ln_q(self.query).expand(len(tokens_BTD), -1, -1)
        pooled_B1E, _ = self.attn(query_B1E, keys_BTD, keys_BTD, need_weights=False)
        embedding_BE: Tensor = self.norm(pooled_B1E[:, 0])
        return embedding_BE


def put_attention_pool(net: Any, settings: AttentionPool, classes: int) -> None:
    """Put the pooling between a timm vision transformer's last block and its head.

    Raises ValueError for another kind of network.
    """
    if not hasattr(net, "pool_include_prefix") or not isinstance(net.head, nn.Linear):
        raise ValueError("an attention pool needs a plain vision transformer")
    tokens = net.embed_dim
    device = net.head.weight.device
    net.norm, net.fc_norm = nn.Identity(), nn.Identity()
    net.pool_include_prefix = True
    with device:
        net.attn_pool = QueryPool(tokens, settings)
        net.head = nn.Linear(settings.width, classes)
    net.num_features = net.head_hidden_size = settings.width
