"""Images that are unusual in their dataset, by embeddings: a table of scores, and flags."""

from collections.abc import Iterable
from pathlib import Path

from skindx.core.errors import UserError
from skindx.data.decisions import Flag, write_flags
from skindx.data.image_tables import Embeddings, OodScores, write_ood
from skindx.data.manifest import read_manifest
from skindx.models.ood.detectors import unusual_scores

FEWEST = 40
"""Images from which on it can be said what is usual."""


def off_topic(dataset: Path, embeddings: Embeddings, out: Path, threshold: float) -> OodScores:
    """Score the manifest's images, write `out`, and flag those from `threshold` on (`off-topic`).

    Raises UserError for too few images with an embedding.
    """
    sha256s = [record.sha256 for record in read_manifest(dataset)]
    known_N, vectors_ND = embeddings.of(sha256s)
    if len(known_N) < FEWEST:
        raise UserError(
            f"{len(known_N)} of the {len(sha256s)} images of {dataset} have an embedding, and "
            f"what is usual can be said from {FEWEST} on; make it again with `skindx dedup embed`."
        )
    scores = OodScores(
        tuple(sha256s[i] for i in known_N), unusual_scores(vectors_ND), embeddings.model
    )
    write_ood(out, scores)
    write_flags(dataset, _flags(scores, threshold), ["off-topic"])
    return scores


def _flags(scores: OodScores, threshold: float) -> Iterable[Flag]:
    for sha256, score in zip(scores.sha256s, scores.scores_N.tolist(), strict=True):
        if score >= threshold:
            share = score / (score + threshold)
            yield Flag(sha256, "off-topic", share, f"unusual: {score:.1f} by {scores.model}")
