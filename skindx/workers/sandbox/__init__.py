"""Processes that decode what nobody trusts: limited memory and time, JSON the only way back.

`pool` is the caller's side, `child` the process; they speak in lines over two pipes.
"""
