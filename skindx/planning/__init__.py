"""Arithmetic of time: cost models, traces, timelines and plans; nothing here measures."""
