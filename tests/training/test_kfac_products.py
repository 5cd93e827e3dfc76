"""K-FAC multiplies by one choice: the same on all ranks, and on to the bit from a checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from plain_engine import Alone
from planted_products import ALWAYS_COPY, one_leaf
from torch import Tensor, nn

from skindx.core.state_checks import UnfitStateError
from skindx.models import nt_product
from skindx.models.nt_product import NtChoice
from skindx.models.nt_record import NtRecord, record_file
from skindx.training.checkpoint.saved_state import read_state, split, write_state
from skindx.training.methods.kfac import kfac
from skindx.training.methods.kfac.kfac import Kfac
from skindx.training.methods.kfac.kfac_settings import KfacSettings
from skindx.training.parallel.mesh import Mesh, ProcessGroup

SETTINGS = KfacSettings(fisher="empirical", factors_every=1, inverses_every=2, damping=0.05)
STEPS = 5


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the copies that were made."""
    made: list[int] = []
    real = nt_product._transposed

    def spy(b_NK: Tensor, most_bytes: int | None) -> Tensor | None:
        found = real(b_NK, most_bytes)
        made.extend([b_NK.nbytes] if found is not None else [])
        return found

    monkeypatch.setattr(nt_product, "_transposed", spy)
    return made


def _learn(tree: Any = ALWAYS_COPY) -> None:
    NtRecord.of(tree, "cpu", seconds=1, products=9, nt_wins=0).write()


class _Run:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 40)
        )
        self.kfac = Kfac(SETTINGS, self.net, Alone(), draw=None)

    def steps(self, first: int, last: int) -> Tensor:
        for number in range(first, last):
            self.net.zero_grad()
            images = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(number))
            self.kfac.forward(8)
            outputs = self.net(images)
            self.kfac.backward(1 / 8)
            (outputs.square().sum() / 8).backward()
            self.kfac.apply(0.1)
            with torch.no_grad():
                for weight in self.net.parameters():
                    weight.sub_(0.1 * weight.grad)
        return nn.utils.parameters_to_vector(self.net.parameters()).detach().clone()


def _saved(run: _Run, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The state by way of its files, and the weights."""
    write_state(folder, split(run.kfac.state_dict()))
    return read_state(folder), {k: v.clone() for k, v in run.net.state_dict().items()}


def _resumed(saved: tuple[dict[str, Any], dict[str, Tensor]]) -> Tensor:
    again = _Run()
    again.net.load_state_dict(saved[1])
    again.kfac.load_state_dict(saved[0])
    return again.steps(2, STEPS)


def test_by_copies_it_is_the_same_update(copies: list[int]) -> None:
    plain = _Run().steps(0, STEPS)
    assert not copies
    _learn()
    copied = _Run().steps(0, STEPS)
    assert copies
    torch.testing.assert_close(copied, plain, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("learned", ["copies", "nothing"])
def test_a_training_goes_on_to_the_bit_whatever_is_learned_meanwhile(
    learned: str, copies: list[int], tmp_path: Path
) -> None:
    if learned == "copies":
        _learn()
    run = _Run()
    run.steps(0, 2)
    saved = _saved(run, tmp_path / "state")
    whole = run.steps(2, STEPS)
    assert (kfac.PRODUCTS in saved[0]) == (learned == "copies")
    if learned == "copies":
        record_file("cpu").unlink()
    else:
        _learn()
    copies.clear()
    assert torch.equal(_resumed(saved), whole)
    assert bool(copies) == (learned == "copies")


def test_nt_always_leaves_no_trace_in_a_checkpoint() -> None:
    _learn(one_leaf(transposed=False))
    run = _Run()
    run.steps(0, 1)
    assert run.kfac.choice is None
    assert list(run.kfac.state_dict()) == ["steps", "factors", "bases"]


class _Ranks(Mesh):
    """The mesh of one of two ranks, which hears these answers of the other."""

    def __init__(self, rank: int, sent: list[Any], other: list[int]) -> None:
        super().__init__(ProcessGroup(rank, 2), torch.device("cpu"), Alone().settings)
        object.__setattr__(self, "sent", sent)
        object.__setattr__(self, "other", other)

    def broadcast_from_main(self, work: Any) -> Any:
        if self.is_main:
            self.sent.append(work())
        return self.sent[0]

    def gather(self, value: Any) -> list[Any]:
        return [value, self.other] if self.is_main else [self.other, value]


def test_all_ranks_take_the_choice_of_the_main_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _learn()
    sent: list[Any] = []
    main = kfac.choice_of_run(_Ranks(0, sent, [1000, 7]))
    record_file("cpu").unlink()
    monkeypatch.setattr(kfac, "free_bytes", lambda device: 1000)
    monkeypatch.setattr(kfac, "current_threads", lambda device: 7)
    assert main is not None
    threads = torch.get_num_threads()
    assert main == NtChoice(tree=ALWAYS_COPY, copy_bytes=500, threads=threads)
    other = kfac.choice_of_run(_Ranks(1, sent, [10**12, threads]))
    assert other == main


@pytest.mark.parametrize(
    "value", [None, [], {}, {"tree": {}}, {"tree": ALWAYS_COPY.model_dump(mode="json"), "copy": 1}]
)
def test_a_choice_that_cannot_be_used_is_an_unfit_state(value: Any) -> None:
    run = _Run()
    run.steps(0, 1)
    state = {**run.kfac.state_dict(), kfac.PRODUCTS: value}
    again = _Run()
    before = again.kfac.steps
    with pytest.raises(UnfitStateError, match="no usable choice of products"):
        again.kfac.load_state_dict(state)
    assert again.kfac.steps == before
