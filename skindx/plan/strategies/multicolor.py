"""Multi-color all-reduce: parts of a bucket along different trees, all at once."""

from skindx.plan.strategies.bucketed import Bucketed


class Multicolor(Bucketed):
    """`exchange.kind: multicolor` (Kumar et al. 2017, arXiv 1711.00705)."""

    name = "multicolor"
    kind = "multicolor"
    usual_chunks = 4

    def pricing(self) -> dict[str, int]:
        """Return what its price depends on."""
        return {**super().pricing(), "colors": int(self.options.get("colors", 2))}
