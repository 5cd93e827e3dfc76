"""How the ranks of one training share out its network, by `engine.parallel.kind`."""

from typing import TYPE_CHECKING

from skindx.core.kinds import Family
from skindx.training.forms.parallel_form import ParallelSettings

_IN_THE_LAB = "no figure shows a gain, so it is in the lab: install skindx-bench, or take owt"

PARALLEL_FORMS = Family(
    "parallel form",
    "skindx.parallel_forms",
    {
        "data": "skindx.training.forms.parallel_form:DataSettings",
        "owt": "skindx.training.forms.owt_form:OwtSettings",
    },
    gone={
        "tensor": _IN_THE_LAB,
        "tensor3d": _IN_THE_LAB,
        "model": "a pipeline of stages was slower than owt wherever it was measured: take owt, or "
        "engine.zero=3 for a network that is too large for one GPU",
    },
)

if TYPE_CHECKING:
    AnyParallel = ParallelSettings
else:
    AnyParallel = PARALLEL_FORMS.union()
