"""The pooling of CoCa's image tower: one learned query attends to all tokens.

Yu et al. 2022, arXiv 2205.01917, section 3.2, as open_clip builds it: keys and values are the
normalised tokens, and the answer is normalised. Of open_clip's queries only the first makes the
image's embedding; no query sees another one, so that the others can be left out.

B = batch, T = tokens, D = width of the tokens, E = width of the embedding
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from skindx.core.settings_base import Settings


class AttentionPool(Settings):
    """How tokens become one embedding where timm has no such pooling."""

    width: int = Field(ge=8, le=8192)
    """Of the embedding."""
    heads: int = Field(ge=1, le=128)


class QueryPool(nn.Module):
    """Tokens B x T x D in, embeddings B x E out."""

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
        """Return the embeddings."""
        keys_BTD = self.ln_k(tokens_BTD)
        query_B1E = self.ln_q(self.query).expand(len(tokens_BTD), -1, -1)
        found_B1E, _ = self.attn(query_B1E, keys_BTD, keys_BTD, need_weights=False)
        embedding_BE: Tensor = self.norm(found_B1E[:, 0])
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
