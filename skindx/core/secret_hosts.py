"""Where values of this machine may go: only to hosts that its user named for them.

A recipe or a file of settings may come from somebody else. It may name a variable of the
environment, or a file, and the server that gets its value; that the server may have it, the user
says in SKINDX_SECRET_HOSTS, such as PACS_TOKEN@pacs.example,/run/key@api.example:8443.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from skindx.core.errors import UserError

ALLOWED = "SKINDX_SECRET_HOSTS"
ANY_HOST = "*"
HUB = "huggingface.co"
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_WHOLE_HOST = re.compile(r"\$\{(\w+)\}(?=[/?#]|$)")
_URL = re.compile(r"\s*[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def expanded(value: Any, origin: str) -> Any:
    """Return plain values with `${NAME}` replaced by the environment variable NAME.

    Raises UserError for one that is not set, and for a URL that would bring one to a host that the
    user has not named for it. A variable that is a URL up to the end of its host names it itself.
    """
    if isinstance(value, dict):
        return {key: expanded(item, origin) for key, item in value.items()}
    if isinstance(value, list):
        return [expanded(item, origin) for item in value]
    if not isinstance(value, str) or not (names := _VARIABLE.findall(value)):
        return value
    for name in names:
        if name not in os.environ:
            raise UserError(
                f"{origin} needs the environment variable {name}, which is not set; run `export "
                f"{name}=VALUE` and then the same command again."
            )
    text = _VARIABLE.sub(lambda match: os.environ[match[1]], value)
    if host := host_of(text):
        for name in names[_names_its_host(value) :]:
            check_secret(name, host, origin)
    return text


def _names_its_host(text: str) -> bool:
    first = _WHOLE_HOST.match(text)
    return bool(first and host_of(os.environ[first[1]]))


def host_of(text: str) -> str:
    """Return the host, with the port if it is written, that a URL leads to; "" for other text."""
    if text.strip().startswith("hf-hub:"):
        return HUB
    if not _URL.match(text):
        return ""
    try:
        return urlsplit(text.strip()).netloc.rpartition("@")[2].lower()
    except ValueError:  # it is refused as a URL, later
        return "?"


def check_secret(name: str, host: str, origin: str) -> None:
    """Raise UserError unless the user named `host` for a variable, or for a file by its path."""
    allowed = [one.strip() for one in os.environ.get(ALLOWED, "").split(",") if one.strip()]
    for one in allowed:
        what, _, where = one.rpartition("@")
        if what == name and where.lower() in (host.lower(), ANY_HOST):
            return
    where = "every site that is asked" if host == ANY_HOST else host
    line = ",".join([*allowed, f"{name}@{host}"])
    raise UserError(
        f"{origin} would send the value of the environment variable {name} to {where}; if you "
        f"trust this server, run `export {ALLOWED}='{line}'` and then the same command again."
    )


def check_sent(raw: Any, hosts: Collection[str], origin: str) -> None:
    """Raise UserError for a variable in plain values that are sent to hosts not named for it."""
    for name in dict.fromkeys(variables(raw)):
        for host in hosts:
            check_secret(name, host, origin)


def variables(raw: Any, *, of_urls: bool = False) -> Iterator[str]:
    """Yield the names of the variables in plain values, or in their URLs alone."""
    for text in _texts(raw):
        if not of_urls or _URL.match(text) or _WHOLE_HOST.match(text):
            yield from _VARIABLE.findall(text)


def hosts_in(values: Any) -> Iterator[str]:
    yield from filter(None, map(host_of, _texts(values)))


def _texts(values: Any) -> Iterator[str]:
    if isinstance(values, str):
        yield values
    elif isinstance(values, Mapping | Sequence):
        for item in values.values() if isinstance(values, Mapping) else values:
            yield from _texts(item)


def without_values(values: Any, names: Collection[str]) -> Any:
    """Return plain values with `${NAME}` again where a URL, after its host, holds its value."""
    if isinstance(values, Mapping):
        return {key: without_values(item, names) for key, item in values.items()}
    if isinstance(values, list | tuple):
        return [without_values(item, names) for item in values]
    if not isinstance(values, str) or not (host := host_of(values)):
        return values
    end = values.lower().find(host) + len(host)
    rest = values[end:]
    for name in sorted(names, key=lambda name: len(os.environ.get(name, "")), reverse=True):
        if secret := os.environ.get(name):
            rest = rest.replace(secret, f"${{{name}}}")
    return values[:end] + rest
