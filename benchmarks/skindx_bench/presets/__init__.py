"""Training settings that benches take unless they are given others; they come with the package."""

from pathlib import Path


def preset(name: str) -> Path:
    """Return the YAML file of a preset."""
    return Path(__file__).with_name(f"{name}.yaml")
