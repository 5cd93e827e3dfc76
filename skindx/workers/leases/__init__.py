"""Tasks in a database that many workers take, renew and answer, even if some of them die."""
