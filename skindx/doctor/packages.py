"""Checks of installed extras, and that exactly one OpenCV provides `cv2`."""

from skindx.core.machine import how_to_install
from skindx.doctor.finding import Finding, installed

DISTRIBUTIONS = {
    "data": (
        "backports-zstd",
        "brotli",
        "defusedxml",
        "mlcroissant",
        "numba",
        "pycocotools",
        "scrapy",
    ),
    "audit": (
        "cleanlab",
        "cleanvision",
        "fairlearn",
        "faiss-cpu",
        "nudenet",
        "onnxruntime",
        "rapidocr-onnxruntime",
    ),
    "train": ("deepspeed", "numba", "psutil", "setuptools", "sqlalchemy"),
    "track": ("mlflow-skinny", "tensorboard", "wandb"),
    "detect": ("ultralytics", "pycocotools"),
    "app": (
        "cryptography",
        "fastapi",
        "fpdf2",
        "gradio",
        "gradio-image-annotation",
        "pillow-heif",
        "prometheus-client",
        "python-multipart",
        "sqlalchemy",
        "uvicorn",
    ),
    "serve": ("nncf", "onnx", "onnxruntime", "openvino"),
    "scan": ("pyvips", "pyvips-binary", "sqlalchemy", "zarr"),
}
"""What each extra installs, as in pyproject.toml."""

OPENCV = (
    "opencv-python",
    "opencv-contrib-python",
    "opencv-python-headless",
    "opencv-contrib-python-headless",
)
"""The distributions that own the module `cv2`."""


def extras() -> list[Finding]:
    findings = []
    for extra, names in DISTRIBUTIONS.items():
        have = {name: installed(name) for name in names}
        missing = [name for name, version in have.items() if version is None]
        detail = ", ".join(f"{name} {version or 'missing'}" for name, version in have.items())
        advice = f"Run: {how_to_install(extra)}"
        findings.append(Finding(f"extra {extra}", not missing, detail, advice, required=False))
    return findings


def opencv() -> Finding:
    have = [f"{name} {version}" for name in OPENCV if (version := installed(name))]
    others = " ".join(name for name in OPENCV if name != "opencv-python-headless")
    headless = "pip install --force-reinstall --no-deps opencv-python-headless"
    advice = (
        f"They overwrite each other's cv2. Run: pip uninstall -y {others} && {headless}"
        if have
        else f"Run: {headless}"
    )
    return Finding("OpenCV", len(have) == 1, " beside ".join(have) or "not installed", advice)
