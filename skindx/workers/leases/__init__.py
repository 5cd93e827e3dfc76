"""Tasks in a database that many workers take, renew and answer, whoever of them dies."""
