"""Python runs this at start wherever this folder is on PYTHONPATH: some images kill its decoder.

What ends with POISON ends the process that decodes it, as a flaw in a decoder would; each time a
line is added to SKINDX_POISON_LOG.
"""

import os
import signal
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from typing import Any


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "simplejpeg":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        assert spec
        assert spec.loader
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            read_header = module.decode_jpeg_header

            def decode_jpeg_header(data: Any, *rest: Any, **options: Any) -> Any:
                if bytes(data[-6:]) == b"POISON":
                    with open(os.environ["SKINDX_POISON_LOG"], "a", encoding="utf-8") as log:  # noqa: PTH123
                        log.write(f"{os.getpid()}\n")
                    os.kill(os.getpid(), signal.SIGKILL)
                return read_header(data, *rest, **options)

            module.decode_jpeg_header = decode_jpeg_header

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
