"""How the ranks of one training share out its network, by `engine.parallel.kind`."""

from typing import TYPE_CHECKING

from skindx.core.kinds import Family
from skindx.training.forms.parallel_form import ParallelSettings

_FITS = "take owt, or engine.zero=3 for a network that is too large for one GPU"

PARALLEL_FORMS = Family(
    "parallel form",
    "skindx.parallel_forms",
    {
        "data": "skindx.training.forms.parallel_form:DataSettings",
        "owt": "skindx.training.forms.owt_form:OwtSettings",
    },
    gone={
        "tensor": f"no figure showed a gain: {_FITS}",
        "tensor3d": f"no figure shows a gain, so skindx-bench has it: install that, or {_FITS}",
        "model": f"a pipeline of stages was slower than owt wherever it was measured: {_FITS}",
    },
)

if TYPE_CHECKING:
    AnyParallel = ParallelSettings
else:
    AnyParallel = PARALLEL_FORMS.union()
