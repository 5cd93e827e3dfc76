"""How K-FAC multiplies by a transpose: by one choice for all ranks and for the whole training.

NT, a transposed copy and oneDNN may round differently in the last bits. All ranks must compute the
same gradient, and a training must go on to the bit: so the main rank's choice of copies goes to
all, a limit for copies takes the place of the free memory, and a checkpoint holds both. oneDNN is
used where it is the faster one on the processors of all ranks, which needs no measurement.
"""

from typing import Any

from skindx.core.errors import UserError
from skindx.core.state_checks import UnfitStateError
from skindx.gemm.onednn import by_onednn, onednn_is_faster
from skindx.gemm.product import (
    SHARE_OF_FREE,
    Multiply,
    NtChoice,
    current_threads,
    free_bytes,
    learned,
    nt_product,
)
from skindx.training.parallel.mesh import Mesh

PRODUCTS = "products"
"""Key of the choice in a state; absent: NT."""


def choice_of_run(mesh: Mesh) -> NtChoice | None:
    """Return the choice of a training that begins, the same on all ranks; every rank calls this."""
    device = mesh.device.type

    def of_main() -> dict[str, Any] | None:
        choice = learned(device)
        return choice.tree.model_dump(mode="json") if choice else None

    found = mesh.broadcast_from_main(of_main) if mesh.data.size > 1 else of_main()
    if found is None:
        return None
    ranks = mesh.gather([free_bytes(mesh.device), current_threads(device)])
    return NtChoice.parse(
        {
            "tree": found,
            "copy_bytes": int(SHARE_OF_FREE * min(free for free, _ in ranks)),
            "threads": ranks[0][1],
        },
        expand=False,
    )


def onednn_on_all(mesh: Mesh) -> bool:
    """Return True where all ranks multiply faster by oneDNN; every rank calls this."""
    own = mesh.device.type == "cpu" and onednn_is_faster()
    return all(mesh.gather(own)) if mesh.data.size > 1 else own


def product_of(choice: NtChoice | None, device: str, *, onednn: bool) -> Multiply:
    """Return what multiplies: large products by oneDNN where it is used, others by the choice."""
    other = nt_product(choice, device)
    return by_onednn(other) if onednn else other


def choice_state(choice: NtChoice | None) -> dict[str, Any]:
    """Return what a state holds of a choice."""
    return {} if choice is None else {PRODUCTS: choice.model_dump(mode="json")}


def load_choice(state: dict[str, Any]) -> NtChoice | None:
    """Undo `choice_state`. Raises UnfitStateError."""
    if PRODUCTS not in state:
        return None
    try:
        if not isinstance(state[PRODUCTS], dict):
            raise UserError("it is no mapping")
        return NtChoice.parse(state[PRODUCTS], f"kfac/{PRODUCTS}", expand=False)
    except UserError as error:
        raise UnfitStateError(f"kfac has no usable choice of products ({error})") from None
