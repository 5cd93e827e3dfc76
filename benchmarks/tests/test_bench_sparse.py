from pathlib import Path

import pytest

from skindx.core.compiled_loops import compiler
from skindx.core.errors import UserError
from skindx_bench.serve import sparse
from skindx_bench.serve.sparse import LAYERS, relu_input
from skindx_bench.subjects import run_bench


@pytest.mark.lab
@pytest.mark.skipif(not compiler(), reason="there is no C++ compiler")
def test_keys_and_break_even(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "cpu_flags", lambda: frozenset({"avx2"}))
    result = run_bench("sparse", tmp_path / "sparse.json", smallest=True)
    keys = ["sparse_over_onednn_70", "sparse_over_im2col"]
    assert list(result.figures) == keys
    assert set(result.models) == {layer.name for layer in LAYERS[:2]}
    assert "no bf16" in result.notes[1]


def test_without_the_asked_share_there_is_no_figure() -> None:
    with pytest.raises(UserError, match=r"shares must hold 0\.7"):
        run_bench("sparse", sets=["shares=[0.5]"])


@pytest.mark.parametrize(
    ("speeds", "share"),
    [
        ([0.5, 1.5], 0.5),
        ([2.0, 3.0], 0.2),
        ([0.5, 0.9], None),
        ([1.1, 0.9], None),
    ],
)
def test_break_even_by_hand(speeds: list[float], share: float | None) -> None:
    """Between 0.2 and 0.8; a later share at which it is slower counts."""
    found = sparse._break_even(list(zip((0.2, 0.8), speeds, strict=True)))
    assert found == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize("zeros", [0.1, 0.7, 0.9])
def test_inputs_have_their_share_of_zeros(zeros: float) -> None:
    values = relu_input(LAYERS[1], zeros)
    assert float((values == 0).float().mean()) == pytest.approx(zeros, abs=1e-3)
    by_channel = (values == 0).float().mean(dim=(0, 2, 3))
    assert float(by_channel.std()) > 0.05
