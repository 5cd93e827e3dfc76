"""A convolution that skips zeros returns what torch's returns, whatever the zeros."""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from skindx.core import compiled_loops
from skindx_bench.serve import sparse_convolution
from skindx_bench.serve.sparse_convolution import SparseConvolution, fits

needs_compiler = pytest.mark.skipif(
    not compiled_loops.compiler(), reason="there is no C++ compiler"
)


def _layer(channels: int, out: int, kernel: int, stride: int, groups: int = 1) -> nn.Conv2d:
    torch.manual_seed(channels + out)
    layer = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups)
    return layer.eval().requires_grad_(requires_grad=False)


def _input(images: int, channels: int, height: int, width: int, zeros: float) -> Tensor:
    random = torch.Generator().manual_seed(height * width)
    values = torch.randn((images, channels, height, width), generator=random)
    return values * (torch.rand(values.shape, generator=random) >= zeros)


@needs_compiler
@given(
    kernel=st.sampled_from([1, 3]),
    stride=st.sampled_from([1, 2]),
    groups=st.sampled_from([1, 2, 3]),
    own=st.sampled_from([16, 24, 64, 65, 130]),
    out=st.sampled_from([1, 7, 64, 70, 129]),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    images=st.integers(1, 3),
    zeros=st.sampled_from([0.0, 0.5, 0.97, 1.0]),
    threads=st.sampled_from([1, 2]),
    relu=st.booleans(),
)
def test_it_is_the_dense_convolution(
    kernel: int,
    stride: int,
    groups: int,
    own: int,
    out: int,
    height: int,
    width: int,
    images: int,
    zeros: float,
    threads: int,
    relu: bool,
) -> None:
    layer = _layer(own * groups, out * groups, kernel, stride, groups)
    sparse = SparseConvolution(layer, relu=relu, threads=threads)
    assert sparse.compiled
    input_NCHW = _input(images, own * groups, height, width, zeros)
    wanted = layer(input_NCHW)
    wanted = wanted.relu() if relu else wanted
    torch.testing.assert_close(sparse(input_NCHW), wanted, atol=2e-5, rtol=2e-5)
    # A second call, in memory that the first one left.
    tall = input_NCHW.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(sparse(tall), wanted, atol=2e-5, rtol=2e-5)


@needs_compiler
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("relu", [True, False])
def test_nan_counts_as_non_zero(kernel: int, relu: bool) -> None:
    layer = _layer(32, 20, kernel, 1)
    input_NCHW = _input(1, 32, 6, 5, 0.7)
    input_NCHW[0, 3, 2, 2] = torch.nan
    input_NCHW[0, 4, 5, 4] = torch.inf
    wanted = layer(input_NCHW)
    wanted = wanted.relu() if relu else wanted
    found = SparseConvolution(layer, relu=relu)(input_NCHW)
    assert wanted.isnan().any()
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5, equal_nan=True)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(32, 32, 5, padding=2),
        nn.Conv2d(32, 32, 3, stride=3),
        nn.Conv2d(32, 32, 3, dilation=2),
        nn.Conv2d(32, 32, 3, padding=1, groups=32),
        nn.Conv2d(32, 32, 3, padding="same"),
        nn.Conv2d(32, 32, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(32, 32, (1, 3)),
    ],
)
def test_other_layers_are_refused(layer: nn.Conv2d) -> None:
    assert not fits(layer)
    with pytest.raises(ValueError, match="no kernel for Conv2d"):
        SparseConvolution(layer)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled_loops.CppSource.kernel.cache_clear()
    yield tmp_path / "skindx/native"
    compiled_loops.CppSource.kernel.cache_clear()


@pytest.mark.parametrize("program", ["", "false"])
def test_without_a_compiler_it_stays_dense(
    program: str, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is there, or it fails: torch computes, to the bit, and doctor says so."""
    monkeypatch.setattr(compiled_loops, "compiler", lambda: program and shutil.which(program))
    layer = _layer(32, 20, 3, 1)
    sparse = SparseConvolution(layer, relu=True)
    assert not sparse.compiled
    input_NCHW = _input(2, 32, 6, 5, 0.7)
    assert torch.equal(sparse(input_NCHW), layer(input_NCHW).relu())
    assert not list(empty_cache.glob("*.so"))
    ok, detail = sparse_convolution.SOURCE.state()
    assert not ok
    assert "convolutions stay dense" in detail


def _kernel() -> compiled_loops.CompiledKernel:
    found = sparse_convolution.SOURCE.kernel()
    assert found is not None
    return found


@needs_compiler
def test_it_is_compiled_once_for_a_processor_and_a_version(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fastest = compiled_loops.instruction_sets()[0]
    assert sparse_convolution.SOURCE.state()[1] == f"{fastest}, to be compiled at first use"
    assert _kernel().instructions == fastest
    assert sparse_convolution.SOURCE.state()[1] == f"{fastest}, compiled"
    (file,) = empty_cache.iterdir()
    made, digest = file.stat().st_mtime_ns, sparse_convolution.SOURCE.digest()
    compiled_loops.CppSource.kernel.cache_clear()
    _kernel()
    assert file.stat().st_mtime_ns == made
    compiled_loops.CppSource.kernel.cache_clear()
    newer = tmp_path / "convolution.cpp"
    newer.write_text(sparse_convolution.SOURCE.file.read_text() + "// of another version\n")
    changed = dataclasses.replace(sparse_convolution.SOURCE, file=newer)
    monkeypatch.setattr(sparse_convolution, "SOURCE", changed)
    monkeypatch.setattr(compiled_loops, "cpu_flags", frozenset)  # and a processor without AVX2
    assert _kernel().instructions == "portable"
    assert sparse_convolution.SOURCE.digest() != digest
    assert len(list(empty_cache.iterdir())) == 2
    assert sparse_convolution.SOURCE.state()[1].endswith(
        "compiled, 1 in the cache for other versions or processors"
    )


@needs_compiler
def test_where_instructions_fail_the_portable_kernel_returns_the_same(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A processor may claim instructions that end the process, as under an emulator."""
    dies_once = f"import os; p = {str(tmp_path / 'died')!r}; "
    dies_once += "os.path.exists(p) or (open(p, 'w').close(), os.abort()); "
    monkeypatch.setattr(compiled_loops, "_CHECK", dies_once + compiled_loops._CHECK)
    monkeypatch.setattr(compiled_loops, "_SETS", {"claimed": (), "portable": ()})
    for _ in range(2):  # remembered: the other kernel is not compiled again
        assert _kernel().instructions == "portable"
        compiled_loops.CppSource.kernel.cache_clear()
    ok, detail = sparse_convolution.SOURCE.state()
    assert ok
    assert detail == "claimed fails its check on this processor; portable, compiled"
    for kernel, stride in ((1, 1), (3, 1), (3, 2)):
        layer = _layer(70, 33, kernel, stride)
        input_NCHW = _input(2, 70, 7, 5, 0.6)
        input_NCHW[1, 2, 3, 3] = torch.nan
        found = SparseConvolution(layer, relu=True, threads=2)(input_NCHW)
        wanted = layer(input_NCHW).relu()
        torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5, equal_nan=True)


@needs_compiler
def test_a_damaged_file_is_compiled_again(empty_cache: Path) -> None:
    empty_cache.mkdir(parents=True)
    file = sparse_convolution.SOURCE.cached_file(
        compiled_loops.compiler(), compiled_loops.instruction_sets()[0]
    )
    file.write_bytes(b"no library")
    _kernel()
    assert file.stat().st_size > 1000
