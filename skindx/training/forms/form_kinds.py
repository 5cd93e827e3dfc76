"""How the ranks of one training share out its network, by `engine.parallel.kind`."""

from typing import TYPE_CHECKING

from skindx.core.kinds import Family
from skindx.training.forms.parallel_form import ParallelSettings

PARALLEL_FORMS = Family(
    "parallel form",
    "skindx.parallel_forms",
    {
        "data": "skindx.training.forms.parallel_form:DataSettings",
        "owt": "skindx.training.forms.owt_form:OwtSettings",
        "tensor": "skindx.training.forms.tensor:TensorSettings",
        "model": "skindx.training.forms.pipeline:ModelSettings",
        "tensor3d": "skindx.training.forms.tensor3d:Tensor3dSettings",
    },
)

if TYPE_CHECKING:
    AnyParallel = ParallelSettings
else:
    AnyParallel = PARALLEL_FORMS.union()
