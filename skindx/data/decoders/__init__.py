"""Processes that decode what nobody trusts: a limit of memory and of time, and no way back but JSON.

`pool` is the caller's side, `child` the process; they speak in lines over two pipes.
"""
