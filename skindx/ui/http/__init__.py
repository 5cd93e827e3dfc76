"""The server around the page: guard, login, limits, the API, PDF reports."""
