"""The columns of published tables: for Arrow, and as features for `datasets.load_dataset`."""

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from skindx.data.box import Box
from skindx.data.publish.row import Row

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES = {
    "reencoded": "bool",
    "width": "int32",
    "height": "int32",
    "skin_type": "int8",
    "fold": "int8",
    "score": "float32",
    **dict.fromkeys(("x1", "y1", "x2", "y2"), "float32"),
}
_BOX = tuple(field.name for field in dataclasses.fields(Box))
_MANIFEST_ONLY = ("withheld", "withheld_detail", "path")
NAMES = tuple(field.name for field in dataclasses.fields(Row))
SHARD_NAMES = ("image", *(name for name in NAMES if name not in _MANIFEST_ONLY))


def arrow_schema() -> "pa.Schema":
    """Return the schema of manifest.parquet: the fields of `Row`."""
    import pyarrow as pa

    return pa.schema([(name, _arrow_type(name)) for name in NAMES])


def shard_schema(classes: Sequence[str], names: Sequence[str] = SHARD_NAMES) -> "pa.Schema":
    """Return the schema of a shard's columns with their features, as `datasets` itself writes it.

    The column `label` holds the class's position in `classes`.
    """
    import pyarrow as pa

    types = {
        "image": pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        "label": pa.int64(),
    }
    fields = [(name, types.get(name) or _arrow_type(name)) for name in names]
    info = json.dumps({"info": {"features": features(classes, names)}})
    return pa.schema(fields, metadata={"huggingface": info})


def features(classes: Sequence[str], names: Sequence[str] = SHARD_NAMES) -> dict[str, Any]:
    """Return the features of columns as `datasets.Features.from_dict` reads them."""
    special: dict[str, Any] = {
        "image": {"_type": "Image"},
        "label": {"names": list(classes), "_type": "ClassLabel"},
        # A list around the feature is read by every version of `datasets`.
        "boxes": [{name: _value(name) for name in _BOX}],
    }
    return {name: special.get(name) or _value(name) for name in names}


def card_features(classes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the features as the front matter of a dataset card names them."""
    names = {str(position): name for position, name in enumerate(classes)}
    special: dict[str, dict[str, Any]] = {
        "image": {"dtype": "image"},
        "label": {"dtype": {"class_label": {"names": names}}},
        "boxes": {"list": [{"name": name, "dtype": _type(name)} for name in _BOX]},
    }
    return [{"name": name, **(special.get(name) or {"dtype": _type(name)})} for name in SHARD_NAMES]


def tar_features(classes: Sequence[str], suffixes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the features of WebDataset's samples, whose images bear one of `suffixes` each.

    `datasets` would guess them from the first five samples, and fail at the first box after them.
    """
    known = {feature["name"]: feature for feature in card_features(classes)}
    about = [known[name] for name in SHARD_NAMES if name not in ("image", "label")]
    return [
        *({**known["image"], "name": suffix} for suffix in suffixes),
        {"name": "json", "struct": [*about, {"name": "label", "dtype": "string"}]},
        {**known["label"], "name": "cls"},
        *({"name": name, "dtype": "string"} for name in ("__key__", "__url__")),
    ]


def _type(name: str) -> str:
    return _TYPES.get(name, "string")


def _value(name: str) -> dict[str, str]:
    return {"dtype": _type(name), "_type": "Value"}


def _arrow_type(name: str) -> "pa.DataType":
    import pyarrow as pa

    if name == "boxes":
        return pa.list_(pa.struct([(part, pa.type_for_alias(_type(part))) for part in _BOX]))
    return pa.type_for_alias(_type(name))
