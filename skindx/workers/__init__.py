"""Worker processes: messages, limits of memory and time, restarts, sandboxed calls."""
