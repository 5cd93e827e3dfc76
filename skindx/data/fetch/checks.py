"""Checks of web sources before any request."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from skindx.core.errors import UserError
from skindx.core.machine import require_extra
from skindx.data.fetch.settings import FetchSettings, origin_of
from skindx.data.sources.source import WebSource


def check_sources(sources: Sequence[WebSource], fetch: FetchSettings) -> bool:
    """Raise UserError for a source that may not or cannot be asked, before anybody is.

    Tell whether others than servers of the user's own will be asked.
    """
    for source in sources:
        if source.disabled and not source.permission.strip():
            raise UserError(
                f"{source.name} is disabled: {source.disabled.rstrip('.')}; ask for permission, "
                f'then set the source\'s permission: "who gave it, when".'
            )
    require_extra("data", "scrapy", purpose=f"fetching {sources[0].name}")
    own = {origin for origin in fetch.origins if urlsplit(origin).netloc in fetch.allow_private}
    asked = [set(map(_origin, source.check())) for source in sources]
    for source, origins in zip(sources, asked, strict=True):
        if source.needs_contact and not fetch.contact and not origins <= own:
            raise UserError(
                f"{source.name} refuses programs that do not say whom to contact; set "
                f"fetch.contact to a URL or mail address of yours."
            )
    return not set().union(*asked) <= own


def _origin(address: str) -> str:
    try:
        return origin_of(address)
    except ValueError as error:
        raise UserError(f"{error}; write it as http://host/path.") from None
