"""One rank of the exchange benchmark, a process in a namespace: it answers commands."""

import math
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from pydantic import TypeAdapter
from torch import Tensor, nn

from skindx.comm.exchange import Exchange
from skindx.comm.exchange_kinds import AnyExchange, build_exchange
from skindx.comm.fabric import Fabric, GradientBuffer, Transfer
from skindx.comm.fused_exchange import Fused
from skindx.comm.sparse_exchange import Sparse, SparseExchange, add_and_select, merge
from skindx_bench.cluster.gradient_load import heavy_tailed
from skindx_bench.harness.answering import answer_commands
from skindx_bench.harness.netlab import transmitted

if TYPE_CHECKING:
    from skindx_bench.cluster.gradient_load import UnderDeepSpeed


class ReplayFabric(Fabric):
    """Records what comes over the wires in one exchange, and hands it out again at once.

    A sum is not recorded: in a replay it leaves this rank's own values, which are as good for the
    work that follows.
    """

    mode: Literal["live", "record", "replay"] = "live"

    def start(self, mode: Literal["record", "replay"], tape: list[Tensor]) -> None:
        """Record the next exchange on `tape`, or replay it from there; until `stop`."""
        self.mode, self._tape, self._next = mode, tape, 0

    def stop(self) -> None:
        """Use the wires."""
        self.mode = "live"

    def all_reduce(self, tensor: Tensor) -> dist.Work:
        """Begin to sum `tensor` over all ranks, in place."""
        return _Done() if self.mode == "replay" else super().all_reduce(tensor)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return every rank's `tensor`, in rank order; all of one size."""
        if self.mode == "replay":
            return [self._played() for _ in range(self.world)]
        gathered = super().all_gather(tensor)
        self._record(gathered)
        return gathered

    def expect(self, receive: Transfer) -> Transfer:
        """Say early that a message is to come."""
        return receive if self.mode == "replay" else super().expect(receive)

    def swap(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> None:
        """Send and receive some messages at once, and wait for all of them."""
        if self.mode == "replay":
            for transfer in receives:
                transfer.tensor.copy_(self._played())
            return
        super().swap(sends, receives)
        self._record([transfer.tensor for transfer in receives])

    def _record(self, received: Sequence[Tensor]) -> None:
        if self.mode == "record":
            self._tape += [tensor.clone() for tensor in received]

    def _played(self) -> Tensor:
        self._next += 1
        return self._tape[self._next - 1]


class _Done(dist.Work):
    """A piece of work that is over before it begins."""

    def wait(self, timeout: object = None) -> bool:
        return True


# M = elements of the gradient, K = elements that are sent

_TIMEOUT = timedelta(minutes=3)


class ExchangeRank:
    """State of a rank between commands."""

    def __init__(self, shapes: dict[str, list[int]], kinds: dict[str, dict[str, Any]]) -> None:
        """Join the others, and get one exchange of each of `kinds` ready: name -> settings."""
        torch.set_num_threads(1)
        dist.init_process_group("gloo", timeout=_TIMEOUT)
        self.fabric = ReplayFabric(torch.device("cpu"), _TIMEOUT)
        self.shapes = shapes
        self.deepspeed: UnderDeepSpeed | None = None  # made when it is first asked for
        parameters = [(name, nn.Parameter(torch.empty(shape))) for name, shape in shapes.items()]
        self.gradients = GradientBuffer(parameters)
        self.source_M = heavy_tailed(self.gradients.sizes, self.fabric.rank)
        self.exchanges = {name: self._exchange(settings) for name, settings in kinds.items()}
        self.tapes: dict[str, list[Tensor]] = {}
        self.turn = 0

    def _exchange(self, raw: dict[str, Any]) -> Exchange:
        settings = TypeAdapter(AnyExchange).validate_python(raw)
        exchange = build_exchange(settings)
        assert exchange is not None
        exchange.attach(self.fabric, self.gradients, 1)
        if isinstance(exchange, Fused):
            exchange.plan([len(self.gradients.names)])  # nothing to hide behind: one message
        return exchange

    def _fill(self) -> None:
        """Write a gradient whose large elements are elsewhere each time."""
        self.turn += 1
        flat_M, source_M = self.gradients.flat, self.source_M
        at = 1_000_003 * self.turn % len(flat_M)
        flat_M[at:] = source_M[: len(flat_M) - at]
        flat_M[:at] = source_M[len(flat_M) - at :]

    def step(self, name: str) -> dict[str, Any]:
        """Exchange a whole gradient."""
        exchange = self.exchanges[name]
        self._fill()
        return self._counted(exchange, lambda: _run(exchange))

    def local(self, name: str) -> dict[str, Any]:
        """Do the work of an exchange without its wires, all ranks at the same time."""
        exchange, first = self.exchanges[name], name not in self.tapes
        tape = self.tapes.setdefault(name, [])
        if first:
            self._fill()
            self.fabric.start("record", tape)
            _run(exchange)
        self._fill()
        self.fabric.start("replay", tape)
        dist.barrier()
        seconds = _timed(lambda: _run(exchange))
        self.fabric.stop()
        return {"seconds": seconds}

    def core(self, name: str, density: float) -> dict[str, Any]:
        """Select, and merge with what `name` received before, on this rank alone."""
        self._fill()
        k, held_M = math.ceil(density * len(self.source_M)), self.source_M.clone()

        def work() -> None:
            held = add_and_select(self.gradients.flat, held_M, k)
            assert held is not None
            for message in self.tapes[name]:
                held, _ = merge(held, Sparse.unpack(message), k)

        return {"seconds": _timed(work)}

    def memory(self, density: float) -> dict[str, Any]:
        """Time the pass that adds and selects, and the bare addition of the same memory."""
        from skindx.comm.kernels import add_and_find

        self._fill()
        k, held_M = math.ceil(density * len(self.source_M)), self.source_M.clone()
        flat_M = self.gradients.flat
        flat, held = flat_M.numpy(), held_M.numpy()
        threshold = np.partition(np.abs(flat + held), len(flat) - k)[len(flat) - k]
        found, values = np.empty(k, dtype=np.int32), np.empty(k, dtype=np.float32)
        bits = threshold.view(np.int32)
        select_s = _timed(
            lambda: add_and_find(flat, flat.view(np.int32), held, bits, found, values)
        )
        return {"select_s": select_s, "add_s": _timed(lambda: flat_M.add_(held_M))}

    def agree(self, name: str, elements: int, density: float) -> dict[str, Any]:
        """Agree on ready messages: communication alone."""
        exchange = self.exchanges[name]
        assert isinstance(exchange, SparseExchange)
        k = math.ceil(density * elements)
        random = np.random.default_rng([self.fabric.rank, self.turn])
        self.turn += 1
        at_K = np.sort(random.choice(elements, k, replace=False)).astype(np.int32)
        values_K = random.standard_normal(k, dtype=np.float32)
        own = Sparse(torch.from_numpy(at_K), torch.from_numpy(values_K))
        return self._counted(exchange, lambda: exchange.agree(own, k))

    def _counted(self, exchange: Exchange, call: Callable[[], object]) -> dict[str, Any]:
        """Time a call that all ranks make: seconds, bytes by its own and the interface's count."""
        dist.barrier()
        wire, sent = transmitted(), exchange.bytes_sent
        seconds = _timed(call)
        dist.barrier()  # only then has every byte left
        return {
            "seconds": seconds,
            "sent": exchange.bytes_sent - sent,
            "wire": transmitted() - wire,
        }

    def sum(self, elements: int) -> dict[str, Any]:
        """Time the collective that `fused` is made of."""
        tensor = self.gradients.flat[:elements]
        dist.barrier()
        return {"seconds": _timed(lambda: self.fabric.all_reduce(tensor).wait())}

    def backward(self, name: str, groups: list[int], ready_s: list[float]) -> dict[str, Any]:
        """Exchange in groups during a backward pass that makes tensor after tensor by waiting."""
        exchange = self.exchanges[name]
        assert isinstance(exchange, Fused)
        exchange.plan(groups)
        self._fill()
        dist.barrier()
        start = time.perf_counter()
        for group, end in enumerate(accumulate(groups)):
            time.sleep(max(0.0, start + ready_s[end - 1] - time.perf_counter()))
            exchange.launch(group)
        exchange.finish()
        return {"seconds": time.perf_counter() - start}

    def engine(self, kind: str, groups: list[int], ready_s: list[float]) -> dict[str, Any]:
        """Do the same under DeepSpeed, which reduces by itself or lets `fused` do it."""
        from skindx_bench.cluster.gradient_load import UnderDeepSpeed

        if self.deepspeed is None:
            self.deepspeed = UnderDeepSpeed(self.shapes, self.source_M)
        return {"seconds": self.deepspeed.step(kind, groups, ready_s)}


def _run(exchange: Exchange) -> None:
    for group in range(len(exchange.groups)):
        exchange.launch(group)
    if not exchange.finish():
        raise RuntimeError("the gradient is not finite")


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    answer_commands(lambda job: ExchangeRank(**job))
