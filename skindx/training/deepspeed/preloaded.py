"""Imports of DeepSpeed's ranks, for the process from which they are forked."""

import torch._dynamo  # noqa: F401 (the first optimizer imports it)

from skindx.training.deepspeed.ranks import import_deepspeed

import_deepspeed()
