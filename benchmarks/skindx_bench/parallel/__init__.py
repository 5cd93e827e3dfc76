"""Forms of parallelism on an emulated cluster: split wide layers beside data parallelism."""
