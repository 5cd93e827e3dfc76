"""How ranks are started, watched and stopped, on one machine or on many."""
