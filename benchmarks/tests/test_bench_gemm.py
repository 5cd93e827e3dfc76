import dataclasses
import json
import math
from pathlib import Path

import pytest
from planted_products import grid, timed

from skindx.core.errors import UserError
from skindx_bench.devices import gemm
from skindx_bench.gemm.learning import ProductShape, TimedProduct
from skindx_bench.subjects import run_bench

KEYS = ["nt_wins", "nt_regret", "nt_over_always_nt", "nt_over_always_transposed", "fit_s"]


@pytest.mark.lab
def test_smallest_run(tmp_path: Path) -> None:
    result = run_bench("gemm", tmp_path / "gemm.json", smallest=True)
    assert list(result.figures) == KEYS
    assert list(json.loads((tmp_path / "gemm.json").read_text())["figures"]) == KEYS
    assert 0 <= result.figures["nt_wins"].value <= 1
    assert all(math.isfinite(figure.value) for figure in result.figures.values())


def test_the_tree_is_judged_by_products_that_it_does_not_learn_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = grid(lambda shape: 2.0 if shape.m >= 128 else 0.5)
    # Sizes that lie outside of the first ones: NT is right there, and a copy would be slow.
    other = [
        timed(dataclasses.replace(one.shape, n=one.shape.n + 1), 0.1)
        for one in known
        if one.shape.m == 512
    ]
    parts = [(known, len(known)), (other, len(other))]
    monkeypatch.setattr(gemm, "measure", lambda *_: parts.pop(0))
    monkeypatch.setattr(gemm, "shapes_of", lambda *_: [one.shape for one in [*known, *other]])
    result = run_bench("gemm", None, ["more_s=1"])
    assert result.figures["nt_regret"].n == len(known) + len(other)
    assert f"Learned of {len(known)}: a tree of 2 leaves" in result.notes[0]
    inside = [one for one in other if one.shape.n <= 512]
    # The tree takes the copy there, ten times as slow; beyond what was timed it is NT.
    logs = math.log(10) * len(inside) / (len(known) + len(other))
    assert result.figures["nt_regret"].value == pytest.approx(math.exp(logs) - 1, rel=0.1)


def test_figures_of_planted_timings_by_hand() -> None:
    known = grid(lambda shape: 2.0 if shape.m >= 128 else 0.5)
    copied = [one.shape.m >= 128 for one in known]
    figures = gemm._worth(known, copied)
    assert figures["nt_wins"].value == pytest.approx(0.5)
    assert figures["nt_regret"].value == 0
    assert figures["nt_over_always_nt"].value == pytest.approx(2**0.5)
    assert figures["nt_over_always_transposed"].value == pytest.approx(2**0.5)
    always = gemm._worth(known, [False] * len(known))
    assert always["nt_regret"].value == pytest.approx(2**0.5 - 1)  # half of them take twice as long
    assert always["nt_over_always_nt"].value == 1
    low, high = figures["nt_wins"].spread
    assert 0.3 < low < 0.5 < high < 0.7
    uses = gemm._by_use(known, {"a": [(128, 8, 8, 0)], "b": [(8, 8, 8, 0)], "c": [(1, 1, 1, 1)]})
    assert uses == {
        "a": {"products": 2, "nt_wins": 0, "transposed_over_nt": pytest.approx([2.0] * 3)},
        "b": {"products": 2, "nt_wins": 2, "transposed_over_nt": pytest.approx([0.5] * 3)},
    }


def test_chance_is_no_regret() -> None:
    """Here an oracle that is judged by the rounds it saw would win, and by others it loses."""
    one = TimedProduct(ProductShape(8, 8, 8), (1.0, 1.5, 1.0, 1.5), (1.5, 1.0, 1.5, 1.0))
    assert gemm._regret(one, False) == gemm._regret(one, True) == pytest.approx(-math.log(1.5) / 2)
    clear = TimedProduct(ProductShape(8, 8, 8), (1.0, 1.1, 1.2, 1.0), (2.0, 2.2, 2.4, 2.0))
    assert gemm._regret(clear, False) == 0
    assert gemm._regret(clear, True) == pytest.approx(math.log(2))


def test_user_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="needs a GPU"):
        run_bench("gemm", sets=["device=cuda"])
    monkeypatch.setattr(gemm, "measure", lambda *_: ([], 0))
    with pytest.raises(UserError, match="give more seconds"):
        run_bench("gemm")
