"""How the ranks of one training share out its network, by `engine.parallel.kind`."""

from typing import TYPE_CHECKING

from skindx.core.companions import LAB
from skindx.core.kinds import Family
from skindx.core.removed_names import removed_kinds
from skindx.training.forms.parallel_form import ParallelSettings

PARALLEL_FORMS = Family(
    "parallel form",
    "skindx.parallel_forms",
    {
        "data": "skindx.training.forms.parallel_form:DataSettings",
        "owt": "skindx.training.forms.owt_form:OwtSettings",
    },
    gone=removed_kinds("train engine.parallel"),
    elsewhere={"tensor3d": LAB},
)

if TYPE_CHECKING:
    AnyParallel = ParallelSettings
else:
    AnyParallel = PARALLEL_FORMS.union()
