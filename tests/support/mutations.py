"""Changes that an attacker, a bad disk or a careless hand makes to a bundle."""

import json
import struct
from pathlib import Path
from typing import Any

import yaml
from forged_bundle import change_index, forge
from hypothesis import strategies as st

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 2**31, 2**63, 1e308, 1e-308, -0.5, 0.999999, "", "${HOME}", "\0"]),
    st.sampled_from(["../../etc/passwd", "hf-hub:a/b", "a" * 5000, "nn.Upsample", [], {}, [[]]]),
    st.integers(-3, 70_000),
    st.floats(),
    st.text(max_size=12),
)


@st.composite
def bent_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Flip bits of a file, cut it, or put something into it."""
    bent = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        if bent:
            # What a file declares stands at its two ends.
            near = draw(st.integers(0, min(len(bent), 4096) - 1))
            at = near if draw(st.booleans()) else len(bent) - 1 - near
            bent[at] ^= 1 << draw(st.integers(0, 7))
    kind = draw(st.sampled_from(["flip", "flip", "cut", "grow"]))
    if kind == "cut":
        return bytes(bent[: draw(st.integers(0, len(bent)))])
    if kind == "grow":
        at = draw(st.integers(0, len(bent)))
        bent[at:at] = draw(st.binary(min_size=1, max_size=64))
    return bytes(bent)


@st.composite
def bent_values(draw: st.DrawFn, raw: Any) -> Any:
    """Replace, remove or add one value somewhere in plain nested values."""
    raw = json.loads(json.dumps(raw))
    node, steps = raw, 0
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = draw(st.sampled_from(keys)) if keys else "more"
        inner = node[key] if keys else None
        steps += 1
        if not isinstance(inner, dict | list) or not inner or draw(st.integers(0, 4)) == 0:
            break
        node = inner
    action = draw(st.sampled_from(["change", "change", "change", "remove", "twice"]))
    if not keys or action == "change":
        if isinstance(node, dict) or keys:
            node[key] = draw(ODD)
    elif action == "remove":
        del node[key]
    elif isinstance(node, list):
        node.extend(node[:])
    else:
        node[draw(st.text(max_size=8))] = inner
    return raw


@st.composite
def mutation(draw: st.DrawFn, bundle: Path) -> tuple[str, bytes]:
    """Return a file of a bundle and its new content."""
    names = sorted(path.relative_to(bundle).as_posix() for path in bundle.rglob("*.*"))
    texts = ["bundle.json", "taxonomy.yaml", "detector/model.yaml", "metrics.json"]
    name = draw(st.sampled_from(texts) | st.sampled_from([n for n in names if "." in n]))
    content = (bundle / name).read_bytes()
    if draw(st.integers(0, 4)) == 0:
        return name, draw(bent_bytes(content))
    if name.endswith(".json"):
        return name, json.dumps(draw(bent_values(json.loads(content)))).encode()
    if name.endswith(".yaml"):
        bent = draw(bent_values(yaml.safe_load(content)))
        return name, yaml.safe_dump(bent, sort_keys=False).encode()
    if name.endswith(".safetensors"):
        length = struct.unpack("<Q", content[:8])[0]
        header = json.dumps(draw(bent_values(json.loads(content[8 : 8 + length])))).encode()
        return name, struct.pack("<Q", len(header)) + header + content[8 + length :]
    return name, draw(bent_bytes(content))


def apply(bundle: Path, name: str, content: bytes, *, hashed: bool) -> None:
    """Write a mutation into a copy of a bundle; `hashed`: with its hash corrected."""
    if name == "bundle.json" or not hashed:
        (bundle / name).write_bytes(content)
    else:
        forge(bundle, name, content)


__all__ = ["apply", "change_index", "mutation"]
