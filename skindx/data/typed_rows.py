"""Parquet tables whose columns are the fields of a dataclass: their schema, and their rows.

A damaged or forged table is one sentence.
"""

import dataclasses
import types
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from skindx.core.atomic_files import read_parquet

Int8 = Annotated[int, "int8"]
Int32 = Annotated[int, "int32"]
Float32 = Annotated[float, "float32"]
"""Numbers of which a column has fewer bits than of others."""

_ARROW = {str: "string", int: "int64", float: "float64", bool: "bool"}


@cache
def column_types(row_type: type) -> dict[str, Any]:
    """Return the type of each column by Arrow's name; a list holds that of its items.

    The type of a structure is a dictionary of its own columns.
    """
    hints = get_type_hints(row_type, include_extras=True)
    return {field.name: _column_type(hints[field.name]) for field in dataclasses.fields(row_type)}


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return a hint but for None, and whether a value may be None."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    (inner,) = (part for part in get_args(hint) if part is not type(None))
    return inner, True


def _column_type(hint: Any) -> Any:
    hint, _ = _without_none(hint)
    if get_origin(hint) is tuple:
        return [_column_type(get_args(hint)[0])]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return column_types(hint)
    if get_origin(hint) is Annotated:
        return hint.__metadata__[0]
    return "string" if get_origin(hint) is Literal else _ARROW[hint]


def shared_values(row: Any, row_type: type) -> dict[str, Any]:
    """Return what a row has in the columns that rows of another type have too, by their names."""
    return {name: getattr(row, name) for name in column_types(row_type) if hasattr(row, name)}


def arrow_schema(row_type: type) -> Any:
    """Return the Arrow schema of a table of dataclasses."""
    import pyarrow as pa

    return pa.schema([(name, arrow_type(kind)) for name, kind in column_types(row_type).items()])


def arrow_type(kind: Any) -> Any:
    """Return the Arrow type that `column_types` names."""
    import pyarrow as pa

    if isinstance(kind, dict):
        return pa.struct([(name, arrow_type(part)) for name, part in kind.items()])
    return pa.list_(arrow_type(kind[0])) if isinstance(kind, list) else pa.type_for_alias(kind)


_WORDS = {str: "text", int: "whole numbers", float: "numbers", bool: "truth values"}


def rows_of(path: Any, row_type: type) -> list[dict[str, Any]]:
    """Return the rows of a table whose columns are the fields of a dataclass.

    A column may be missing, as in a table of an older version, when its field has a default. Lists
    become tuples, and structures in them objects of their dataclass. Raises ValueError, which says
    what is wrong, and what pyarrow raises.
    """
    table = read_parquet(path)
    names = checked(table.schema.names, row_type)
    columns: dict[str, list[Any]] = {}
    for name in names:
        columns[name] = _values(name, table[name].combine_chunks(), _hints(row_type)[name])
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def checked(there: list[str], row_type: type) -> list[str]:
    """Return the fields of a dataclass that are there. Raises ValueError for one that must be."""
    fields = dataclasses.fields(row_type)
    missing = [
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.name not in there
    ]
    if missing:
        raise ValueError(f"the columns {', '.join(sorted(missing))} are missing")
    return [field.name for field in fields if field.name in there]


_hints = cache(get_type_hints)


def _values(name: str, column: Any, hint: Any) -> list[Any]:
    """Return a column's values, each as a type hint wants it. Raises ValueError."""
    hint, may_lack = _without_none(hint)
    if column.null_count and not may_lack:
        raise ValueError(f"the column {name} has rows without a value")
    if column.null_count == len(column):
        return [None] * len(column)
    if get_origin(hint) is tuple:
        return _lists(name, column, get_args(hint)[0])
    kind = type(get_args(hint)[0]) if get_origin(hint) is Literal else hint
    if not _fits(column.type, kind):
        raise ValueError(f"the column {name} has values of type {column.type}, not {_WORDS[kind]}")
    if kind is float:
        import pyarrow.compute as pc

        if pc.all(pc.is_finite(column)).as_py() is False:
            raise ValueError(f"the column {name} has a number that is not finite")
    values: list[Any] = column.to_pylist()
    return values


def _fits(kind: Any, wanted: type) -> bool:
    from pyarrow import types as of

    if of.is_dictionary(kind):
        kind = kind.value_type
    if wanted is str:
        return bool(of.is_string(kind) or of.is_large_string(kind) or of.is_string_view(kind))
    if wanted is bool:
        return bool(of.is_boolean(kind))
    return bool(of.is_integer(kind) or (wanted is float and of.is_floating(kind)))


def _lists(name: str, column: Any, item: Any) -> list[Any]:
    """Return a column's lists as tuples; `item` is the dataclass or plain type in them."""
    from pyarrow import types as of

    if not any(test(column.type) for test in (of.is_list, of.is_large_list, of.is_fixed_size_list)):
        raise ValueError(f"the column {name} has values of type {column.type}, not lists")
    inner = column.flatten()
    structured = dataclasses.is_dataclass(item)
    if not structured:
        _values(name, inner, item)
    elif not of.is_struct(inner.type):
        raise ValueError(f"the column {name} has lists of {inner.type}, which is the wrong type")
    else:
        names = checked([inner.type.field(n).name for n in range(inner.type.num_fields)],
                        item)  # fmt: skip
        parts = {
            part: _values(f"{name}.{part}", inner.field(part), _hints(item)[part]) for part in names
        }
        made = iter([item(**dict(zip(parts, one, strict=True)))
                     for one in zip(*parts.values(), strict=True)])  # fmt: skip
        lengths = column.value_lengths().to_pylist()
        return [None if n is None else tuple(next(made) for _ in range(n)) for n in lengths]
    return [None if row is None else tuple(row) for row in column.to_pylist()]


def only_once(rows: list[dict[str, Any]], name: str) -> None:
    """Raise UserError for a value that stands in two rows."""
    seen: set[Any] = set()
    for row in rows:
        if row[name] in seen:
            raise ValueError(f"the column {name} has {str(row[name])[:20]!r} in two rows")
        seen.add(row[name])
