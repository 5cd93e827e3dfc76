"""DeepSpeed: the only room that knows its names and its quirks."""
