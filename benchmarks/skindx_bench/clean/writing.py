"""Output of the bench for review: each method's links, and recall by kind as a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from skindx.core.atomic_files import write_csv, write_text
from skindx_bench.clean.score import Scored
from skindx_bench.harness.writing import markdown_table

LINKS = "links-{method}.csv"
RECALL = "recall.md"
COLUMNS = (
    *("truth", "first_is", "second_is", "score"),
    *("first_of", "second_of", "first", "second"),
)


def write_lists(out: Path, scored: Mapping[str, Scored], kinds: Sequence[str]) -> None:
    """Write the links that each method makes, false ones first, and recall.md."""
    for name, one in scored.items():
        rows = [
            (
                "same" if same else "different",
                *(f"{one.planted.parts[i]} {one.planted.kinds[i]}".strip() for i in pair),
                f"{score:.4f}",
                *(one.planted.origins[i] for i in pair),
                *(one.planted.names[i] for i in pair),
            )
            for pair, score, accepted, same in zip(
                one.answer.pairs_P2.tolist(),
                one.answer.score_P.tolist(),
                one.answer.accepted_P.tolist(),
                one.same.tolist(),
                strict=True,
            )
            if accepted
        ]
        columns = (
            "truth",
            "first_is",
            "second_is",
            "score",
            "first_of",
            "second_of",
            "first",
            "second",
        )
        write_csv(out / LINKS.format(method=name), columns, sorted(rows))
    recalls = [
        [kind, *(f"{one.recall(kind)[0].value:.2f}" for one in scored.values())] for kind in kinds
    ]
    torn = [
        [kind, *(f"{one.torn(kind)[0].value:.2f}" for one in scored.values())] for kind in kinds
    ]
    write_text(
        out / RECALL,
        "Share of copies that a method links with their original, at its own threshold.\n\n"
        + markdown_table(("kind", *scored), recalls)
        + "\nShare of copies in another split than their original, when its links make the groups."
        + "\n\n"
        + markdown_table(("kind", *scored), torn),
    )
