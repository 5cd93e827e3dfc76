"""The code of a change: the largest elements of each chunk, in few bits, and back."""

import math

import torch
from torch import Tensor, nn

from skindx_methods.local_steps.local import CHUNK, INDEX_BITS, LocalSettings

# M = elements of a change, C = chunks, N = elements of a chunk, K = those that are sent

_LLOYD = 4
"""Number of rounds of Lloyd's algorithm."""
_TINY = torch.finfo(torch.float32).tiny


def encode(change_M: Tensor, settings: LocalSettings) -> Tensor:
    """Return the largest elements of each chunk as bytes: places, values, two numbers a chunk.

    Magnitudes are levels from a lowest one upwards, with equal steps, which Lloyd's algorithm
    finds: each magnitude takes the nearest level, then both numbers are those of least squares. So
    what is sent never adds to what is left.
    """
    rows_CN = nn.functional.pad(change_M, (0, -len(change_M) % CHUNK)).view(-1, CHUNK)
    k, bits, parts = settings.sent, settings.bits, []
    values_CK = rows_CN
    if k < CHUNK:
        at_CK = rows_CN.abs().topk(k, sorted=False).indices.sort().values
        values_CK = rows_CN.gather(1, at_CK)
        if _masked(k):
            mask_CN = torch.zeros_like(rows_CN, dtype=torch.uint8).scatter_(1, at_CK, 1)
            parts.append(pack(mask_CN, 1))
        else:
            parts.append(pack(at_CK, INDEX_BITS))
    if bits == 32:
        return torch.cat([*parts, values_CK.reshape(-1).view(torch.uint8)])
    size_CK, top = values_CK.abs(), 2 ** (bits - 1) - 1
    size_C1 = size_CK.mean(1, keepdim=True)
    far_C1 = (top + 1) / 2 * (size_CK - size_C1).square_().mean(1, keepdim=True).sqrt()
    low_C1 = size_CK.amin(1, keepdim=True).maximum(size_C1 - far_C1)
    step_C1 = (size_CK.amax(1, keepdim=True).minimum(size_C1 + far_C1) - low_C1) / top
    for _ in range(_LLOYD):
        level_CK = ((size_CK - low_C1) / step_C1.clamp_min(_TINY)).round_().clamp_(0, top)
        level_C1 = level_CK.mean(1, keepdim=True)
        apart_CK = level_CK - level_C1
        step_C1 = (apart_CK * (size_CK - size_C1)).sum(1, keepdim=True)
        step_C1 /= apart_CK.square().sum(1, keepdim=True).clamp_min(1e-6)
        low_C1 = size_C1 - step_C1 * level_C1
    scales_C2 = torch.cat([low_C1, step_C1], 1).bfloat16()
    codes_CK = level_CK.to(torch.int32) * 2 + (values_CK < 0)
    return torch.cat([*parts, pack(codes_CK, bits), scales_C2.reshape(-1).view(torch.uint8)])


def decode(message: Tensor, elements: int, settings: LocalSettings) -> Tensor:
    """Return the change that a message carries, with zeros elsewhere. Raises ValueError."""
    chunks, k, bits = math.ceil(elements / CHUNK), settings.sent, settings.bits
    at_CK, first = None, 0
    if k < CHUNK:
        first = math.ceil(chunks * min(k * INDEX_BITS, CHUNK) / 8)
        if _masked(k):
            mask_CN = unpack(message[:first], 1, chunks * CHUNK).view(chunks, CHUNK)
            if not (mask_CN.sum(1) == k).all():
                raise ValueError("marks another number of places")
            at_CK = mask_CN.nonzero()[:, 1].view(chunks, k)
        else:
            at_CK = unpack(message[:first], INDEX_BITS, chunks * k).view(chunks, k)
    last = first + math.ceil(chunks * k * bits / 8)
    if bits == 32:
        values_CK = message[first:last].clone().view(torch.float32).view(chunks, k)
    else:
        codes_CK = unpack(message[first:last], bits, chunks * k).view(chunks, k)
        scales_C2 = message[last:].clone().view(torch.bfloat16).float().view(chunks, 2)
        values_CK = scales_C2[:, :1] + scales_C2[:, 1:] * (codes_CK >> 1)
        values_CK = torch.where(codes_CK & 1 == 1, -values_CK, values_CK)
    if at_CK is None:
        return values_CK.reshape(-1)[:elements]
    rows_CN = torch.zeros(chunks, CHUNK, device=message.device)
    return rows_CN.scatter_(1, at_CK, values_CK).view(-1)[:elements]


def _masked(k: int) -> bool:
    """Tell whether a bit for each element of a chunk is less than the places of those sent."""
    return k * INDEX_BITS > CHUNK


def pack(numbers: Tensor, bits: int) -> Tensor:
    """Return whole numbers below 2^bits as bytes, without gaps."""
    device = numbers.device
    if 8 % bits == 0:  # whole numbers in a byte
        each = nn.functional.pad(numbers.reshape(-1), (0, -numbers.numel() % (8 // bits)))
        shifts = torch.arange(0, 8, bits, device=device, dtype=torch.uint8)
        return (each.to(torch.uint8).view(-1, 8 // bits) << shifts).sum(1, dtype=torch.uint8)
    places = torch.arange(bits, device=device, dtype=torch.int32)
    ones = ((numbers.reshape(-1, 1).to(torch.int32) >> places) & 1).to(torch.uint8).view(-1)
    ones = nn.functional.pad(ones, (0, -len(ones) % 8)).view(-1, 8)
    weights = 1 << torch.arange(8, device=device, dtype=torch.uint8)
    return (ones * weights).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Undo `pack` for this many numbers."""
    if 8 % bits == 0:
        shifts = torch.arange(0, 8, bits, device=packed.device, dtype=torch.uint8)
        numbers: Tensor = ((packed.view(-1, 1) >> shifts) & (2**bits - 1)).view(-1)[:count].long()
        return numbers
    places = torch.arange(8, device=packed.device, dtype=torch.uint8)
    ones = ((packed.view(-1, 1) >> places) & 1).view(-1)[: count * bits].view(count, bits)
    weights = 1 << torch.arange(bits, device=packed.device, dtype=torch.int64)
    return (ones * weights).sum(1)
