"""How ranks are supervised and stopped, on one machine or on many."""
