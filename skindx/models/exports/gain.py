"""Whether a coarser export is worth it: its speed beside every higher precision, in one run."""

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from skindx.core.errors import UserError
from skindx.models.ensemble.ensemble import Ensemble, Member
from skindx.models.exports.choosing import answering, processor_seconds
from skindx.models.exports.making import make_body
from skindx.models.exports.runtimes import unsupported, with_export
from skindx.models.exports.spec import SUFFIX, Gain, Precision, Runtime

_HIGHER: tuple[Precision, ...] = ("fp32", "bf16")
_ROUNDS = 15


def measure_gain(members: Sequence[Member], exported: Sequence[Member], to: Runtime) -> Gain:
    """Time one image on one thread: the export, eager, and the runtime's higher precisions."""
    with tempfile.TemporaryDirectory(prefix="skindx-gain-") as folder:
        candidates = {"ours": _answering(exported), "eager": _answering(members)}
        for precision in _HIGHER:
            if not unsupported(to, precision):
                peers = [_made(member, to, precision, Path(folder)) for member in members]
                candidates[f"{to} {precision}"] = _answering(peers)
        seconds = processor_seconds(candidates, _ROUNDS)
    ours = seconds.pop("ours")
    best = min(seconds, key=lambda name: statistics.median(seconds[name]))
    ratios = [theirs / mine for mine, theirs in zip(ours, seconds[best], strict=True)]
    low, value, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Gain(over=best, value=value, low=low, high=high)


def refuse_without_gain(gain: Gain, name: str) -> None:
    """Raise UserError for an export that is not faster in at least three of four rounds."""
    if gain.low <= 1:
        raise UserError(
            f"the {name} export is refused: on this machine it answers {gain.value:.2f} times as "
            f"fast as {gain.over} (25 % to 75 % of the rounds: {gain.low:.2f} to "
            f"{gain.high:.2f}), so it gains nothing; the bundle is as it was, use {gain.over}."
        )


def _answering(members: Sequence[Member]) -> Callable[[], object]:
    return answering(Ensemble(tuple(members)))


def _made(member: Member, to: Runtime, precision: Precision, folder: Path) -> Member:
    file = folder / f"{member.name}-{precision}{SUFFIX[to]}"
    make_body(file, member.classifier, member.preprocess, to=to, precision=precision)
    return with_export(member, file, to, precision)
