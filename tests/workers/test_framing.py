"""Messages between processes come through as they are, however they arrive."""

import asyncio
import io

import pytest

from skindx.workers import worker_process

VALUES = (
    None,
    [],
    {"a": [1, 2.5, "ü", b"", {"b": b"\x00\xff"}]},
    [b"x" * 100_000, b"y"],
    {"n": True},
)


@pytest.mark.parametrize("value", VALUES)
def test_messages_come_through_as_they_are(value: object) -> None:
    stream = io.BytesIO(worker_process.pack(value) + worker_process.pack("next"))
    assert worker_process.receive(stream.read) == value
    assert worker_process.receive(stream.read) == "next"
    with pytest.raises(EOFError):
        worker_process.receive(stream.read)


@pytest.mark.parametrize("value", VALUES)
def test_messages_may_arrive_in_pieces(value: object) -> None:
    async def scenario() -> None:
        reader = asyncio.StreamReader()
        received = asyncio.ensure_future(worker_process.receive_async(reader))
        message = worker_process.pack(value)
        for start in range(0, len(message), 4096):
            reader.feed_data(message[start : start + 4096])
            await asyncio.sleep(0)
        assert await received == value
        reader.feed_data(message[:-1])
        reader.feed_eof()
        with pytest.raises(EOFError):
            await worker_process.receive_async(reader)

    asyncio.run(scenario())


@pytest.mark.parametrize("data", [b"Traceback (most recent call last)", b"\0\0\0\2no"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"no valid message|Expecting"):
        worker_process.receive(io.BytesIO(data).read)
