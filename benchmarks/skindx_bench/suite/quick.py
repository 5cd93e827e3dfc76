"""Settings of a quick run: all benches in less than ten minutes on two cores."""

QUICK: dict[str, tuple[str, ...]] = {
    "devices": (
        "sizes=[128,512,1024]",
        "precisions=[fp32,bf16]",
        "rounds=4",
        "least_s=0.1",
        "idle_s=3",
        "batch=4",
        "memory_mb=128",
        "most_s=2",
        "limit_s=110",
    ),
    "exchange": ("parts=[full]", "model=resnet18", "rounds=3"),
    "loader": ("images=200",),
    "serve": ("models=[]", "rounds=5", "photos=2", "gallery=100", "page=false"),
    "container": (
        "tasks=[disk write,disk read,cpu,memory bandwidth,loader,train step,start-up]",
        "rounds=8",
        "restarts=2",
        "least_s=0.1",
        "build=null",
        "disk_mb=32",
        "memory_mb=64",
        "limit_s=60",
    ),
}
"""Bench -> settings with which all of them take less than ten minutes on two cores."""

QUICK_S: dict[str, float] = {
    "devices": 160,
    "exchange": 120,
    "loader": 70,
    "serve": 100,
    "container": 150,
}
"""Bench -> seconds after which it has ended in a quick run; together ten minutes."""
