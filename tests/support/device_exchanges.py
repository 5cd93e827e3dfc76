"""What exchanges make of the same gradients on the CPU and on a device, step by step."""

import os
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from exchanges import Net
from host_fabric import HostFabric
from ranks import free_port

from skindx.comm.exchange import Reducer
from skindx.comm.exchange_kinds import build_exchange
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.comm.fabric import Fabric, GradientBuffer

STEPS = 4
Kinds = Mapping[str, ExchangeSettings]


def updates(
    device: str, backend: str, kinds: Kinds, by_layer: Collection[str] = ()
) -> dict[str, Any]:
    """Return what every kind makes of the same gradients, on the CPU and there.

    The kinds of `by_layer` watch the wide layer at work; to the others its gradient is given.
    """
    on_cpu = _of_every_kind("cpu", "gloo", Fabric, kinds, by_layer)
    if backend != "gloo":
        dist.destroy_process_group()
        os.environ["MASTER_PORT"] = str(free_port())  # for one rank alone
    kind_of_fabric = HostFabric if backend == "gloo" else Fabric
    there = _of_every_kind(device, backend, kind_of_fabric, kinds, by_layer)
    dist.destroy_process_group()
    return {"on cpu": on_cpu, "there": there}


def _of_every_kind(
    device: str,
    backend: str,
    kind_of_fabric: type[Fabric],
    kinds: Kinds,
    by_layer: Collection[str],
) -> dict[str, list[np.ndarray]]:
    if not dist.is_initialized():
        dist.init_process_group(backend, timeout=timedelta(seconds=60))
    where = torch.device(device, 0) if device == "cuda" else torch.device(device)
    fabric = kind_of_fabric(where, timedelta(seconds=60))
    return {
        name: _steps(settings, fabric, by_layer=name in by_layer)
        for name, settings in kinds.items()
    }


def _steps(settings: ExchangeSettings, fabric: Fabric, *, by_layer: bool) -> list[np.ndarray]:
    net = Net().to(fabric.device)
    exchange = build_exchange(settings)
    assert exchange is not None
    gradients = GradientBuffer(list(net.named_parameters()))
    exchange.attach(fabric, gradients, 2)
    exchange.observe(net)
    reducer = Reducer(gradients, exchange)
    flats = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(10 * step + fabric.rank)
        for parameter in net.parameters():
            parameter.grad = None
        reducer.begin()
        reducer.arm()
        loss = torch.zeros((), device=fabric.device)
        if by_layer:
            inputs = torch.randn(4, net.wide.in_features, generator=generator).to(fabric.device)
            loss = loss + net.wide(inputs).square().mean()
        for name, parameter in net.named_parameters():
            watched = by_layer and parameter is net.wide.weight
            if name != "unused" and not watched:
                # The gradient of this sum is `wanted` itself, on every device.
                wanted = torch.randn(parameter.shape, generator=generator)
                loss = loss + (parameter * wanted.to(fabric.device)).sum()
        loss.backward()
        assert reducer.finish() is not None
        flats.append(gradients.flat.cpu().numpy().copy())
    reducer.close()
    return flats


def assert_same(ranks: list[dict[str, Any]], rounded: Mapping[str, float]) -> None:
    """Every kind gave the same on both; `rounded` has the tolerance of those that round more."""
    for rank in ranks:
        for name, steps in rank["on cpu"].items():
            tolerance = rounded.get(name, 1e-6)
            for found, wanted in zip(rank["there"][name], steps, strict=True):
                np.testing.assert_allclose(
                    found, wanted, rtol=tolerance, atol=tolerance, err_msg=name
                )
