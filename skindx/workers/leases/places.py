"""Places held by workers: a worker keeps its own, and takes a dead one's, up to its part.

A place is where data lies that do not travel, such as a partition of the training images.
"""

from sqlalchemy import Connection, select, update

from skindx.workers.leases.tables import PLACES, WORKERS


def settle(connection: Connection, queue: str, worker: str) -> list[int]:
    """Return the places of a living worker after it took or gave back what is its part.

    Its part is an even share of all places among the workers alive, rounded up: a worker that
    took over the place of a dead one gives it back when another comes.
    """
    alive = connection.execute(
        select(WORKERS.c.worker, WORKERS.c.home).where(WORKERS.c.queue == queue)
    ).all()
    rows = connection.execute(
        select(PLACES.c.place, PLACES.c.worker)
        .where(PLACES.c.queue == queue)
        .order_by(PLACES.c.place)
        .with_for_update()
    ).all()
    home = next((row.home for row in alive if row.worker == worker), None)
    own = {row.place for row in rows if row.worker == worker}
    free = {row.place for row in rows if row.worker is None}
    part = -(-len(rows) // max(1, len(alive)))
    kept = set(sorted(own, key=lambda place: (place != home, place))[:part])
    # Homes of others that are alive are left to them.
    homes = {row.home for row in alive if row.worker != worker}
    wanted = sorted(free, key=lambda place: (place != home, place in homes, place))
    for place in wanted:
        if len(kept) < part and (place == home or place not in homes or not kept):
            kept.add(place)
    for places, holder in ((kept - own, worker), (own - kept, None)):
        if places:
            connection.execute(
                update(PLACES)
                .where(PLACES.c.queue == queue, PLACES.c.place.in_(places))
                .values(worker=holder)
            )
    return sorted(kept)
