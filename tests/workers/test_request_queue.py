"""Requests are shared out fairly, and one that ended a worker comes alone."""

import asyncio

from skindx.workers.worker_pool import Request, RequestQueue


def test_requests_are_shared_out_fairly() -> None:
    async def scenario() -> None:
        queue: RequestQueue[int, int] = RequestQueue(10)
        requests: list[Request[int, int]] = [Request(n, size_bytes=n) for n in range(6)]
        requests[4].tries = 1
        takers = [asyncio.ensure_future(queue.take(4)) for _ in range(2)]
        await asyncio.sleep(0)
        for request in requests[:4]:
            await queue.put(request)
        assert await asyncio.gather(*takers) == [requests[:2], requests[2:4]]
        for request in requests[4:]:
            await queue.put(request)
        assert (len(queue), queue.size_bytes) == (2, 4 + 5)
        # What a worker was lost with comes alone.
        assert await queue.take(4) == [requests[4]]
        assert await queue.take(4) == [requests[5]]

    asyncio.run(scenario())
