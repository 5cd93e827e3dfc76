"""The shared storage of the emulated cluster: states cross the links to it and back.

`python -m skindx_bench.cluster.hop_storage ADDRESS` keeps them in memory until it is ended, and
answers those who know the secret of its environment.
Members' states of a real cluster cross the network to a file server likewise.
"""

import hmac
import os
import socket
import sys
import threading
from typing import Any

from skindx.workers import worker_process

PORT = 29700
SECRET = "SKINDX_HOP_SECRET"  # noqa: S105 (the name of a variable)
SECRET_BYTES = 32

Files = dict[str, bytes]


def serve(address: str) -> None:
    """Answer requests, each on a thread of its own."""
    kept: dict[tuple[str, str], Files] = {}
    secret = os.environ[SECRET].encode()
    with socket.create_server((address, PORT)) as listener:
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_answer, args=(connection, secret, kept), daemon=True).start()


def _answer(connection: socket.socket, secret: bytes, kept: dict[tuple[str, str], Files]) -> None:
    with connection, connection.makefile("rb") as stream:
        if not hmac.compare_digest(stream.read(SECRET_BYTES), secret):
            return
        message = worker_process.receive(stream.read)
        key = (message["of"], message["name"])
        answer: dict[str, Any] = {}
        if message["do"] == "put":
            kept[key] = message["files"]
        elif message["do"] == "get":
            answer["files"] = kept[key]
        elif message["do"] == "names":
            answer["names"] = [name for of, name in list(kept) if of == key[0]]
        else:
            for name in message["names"]:
                kept.pop((key[0], name), None)
        connection.sendall(worker_process.pack(answer))


if __name__ == "__main__":
    serve(sys.argv[1])
