"""A tower's weights under timm's names, without its head and without what is not of the image."""

import sys
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from skindx.core.errors import UserError
from skindx.core.state_checks import UnfitStateError, check_finite
from skindx.models.classifier.classifier import build_classifier
from skindx.models.classifier.heads import head_place
from skindx.models.towers.folder import TowerFolder
from skindx.models.weights import read_state

_TRUNK, _VISUAL = "visual.trunk.", "visual."
_POOL = "attn_pool."
_FAILS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""What timm's filters raise for tensors of another network."""


def tower_state(tower: TowerFolder) -> dict[str, Tensor]:
    """Return the tensors of the tower's network, all of them but the head's.

    A position embedding of another size is resampled, as timm does it. Raises UserError for
    weights of another network.
    """
    file = tower.weights()
    given = read_state(file)
    net = build_classifier(tower.network, 1).net
    try:
        head = head_names(net)
        state = _renamed(given, net)
    except _FAILS as error:
        raise _unfit(tower, f"{type(error).__name__} while its tensors were renamed") from None
    own = net.state_dict()
    wanted = {name: tensor for name, tensor in own.items() if name not in head}
    missing = [name for name in wanted if name not in state]
    if missing:
        raise _unfit(tower, f"{len(missing)} of {len(wanted)} are missing, such as {missing[0]}")
    for name, tensor in wanted.items():
        found = state[name]
        if (
            found.shape != tensor.shape
            or not found.is_floating_point() == tensor.is_floating_point()
        ):
            raise _unfit(tower, f"{name} is {tuple(found.shape)} and not {tuple(tensor.shape)}")
    used = {name: state[name] for name in wanted}
    try:
        check_finite(used, "it")
    except UnfitStateError as error:
        raise _unfit(tower, str(error)) from None
    return {name: tensor.to(own[name].dtype).contiguous() for name, tensor in used.items()}


def head_names(net: nn.Module) -> set[str]:
    """Return the names of the tensors of a timm network's last layer."""
    place = head_place(net)
    return {name for name in net.state_dict() if name.startswith(f"{place}.")}


def _renamed(given: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the image tower under the names of `net`."""
    if any(name.startswith(_TRUNK) for name in given):
        cut = {k.removeprefix(_TRUNK): v for k, v in given.items() if k.startswith(_TRUNK)}
        return _filtered(cut, net)
    pool = {}
    if any(name.startswith(_VISUAL + _POOL) for name in given):
        pool = _pool_state(given)
        given = {
            name: tensor
            for name, tensor in given.items()
            if not name.startswith((_VISUAL + _POOL, f"{_VISUAL}ln_post."))
        }
    if f"{_VISUAL}class_embedding" in given:
        given = {name: tensor for name, tensor in given.items() if name.startswith(_VISUAL)}
    return _filtered(dict(given), net) | pool


def _filtered(state: dict[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """Let timm's own filter of this architecture rename and resample what is of older layouts."""
    module = sys.modules[type(net).__module__]
    change = getattr(module, "checkpoint_filter_fn", None)
    if change is None:
        return state
    with torch.inference_mode():
        changed: dict[str, Tensor] = change(state, net)
    return {name: tensor.clone() for name, tensor in changed.items()}


def _pool_state(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return open_clip's attention pool under our names; see attention_pool.py."""
    start = _VISUAL + _POOL
    pool = {
        _POOL + name.removeprefix(start): tensor
        for name, tensor in given.items()
        if name.startswith(start)
    }
    pool[f"{_POOL}query"] = pool[f"{_POOL}query"][:1].clone()
    for part in ("weight", "bias"):
        pool[f"{_POOL}norm.{part}"] = given[f"{_VISUAL}ln_post.{part}"]
    return pool


def _unfit(tower: TowerFolder, reason: str) -> UserError:
    return UserError(
        f"{tower.weights()} does not hold the tensors of {tower.network.model!r} as "
        f"{tower.path.name} describes it ({reason}); copy the folder again."
    )
