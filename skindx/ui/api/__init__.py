"""The HTTP interface beside the page: diagnose, health, metrics, and what describes them."""
