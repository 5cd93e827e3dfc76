"""The tables of leases; a partial unique index lets no group be on two workers at a time."""

from sqlalchemy import Column, Float, Index, Integer, MetaData, String, Table, Text, text

OPEN, TAKEN, DONE, ASIDE, FAILED = "open", "taken", "done", "aside", "failed"
"""States of a task: aside ended three workers, failed was refused by one in a sentence."""

METADATA = MetaData()

QUEUES = Table(
    "lease_queues",
    METADATA,
    Column("queue", String(255), primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("facts", Text, nullable=False),
    Column("scheduler", String(64)),
    Column("scheduler_note", Text),
    Column("scheduler_until", Float),
)

WORKERS = Table(
    "lease_workers",
    METADATA,
    Column("queue", String(255), primary_key=True),
    Column("worker", String(64), primary_key=True),
    Column("note", Text, nullable=False),
    Column("home", Integer),
    Column("until", Float, nullable=False),
)

PLACES = Table(
    "lease_places",
    METADATA,
    Column("queue", String(255), primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("worker", String(64)),
)

TASKS = Table(
    "lease_tasks",
    METADATA,
    Column("queue", String(255), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("alone", String(255)),
    Column("place", Integer),
    Column("stage", Integer, nullable=False),
    Column("weight", Float, nullable=False),
    Column("state", String(8), nullable=False),
    Column("worker", String(64)),
    Column("losses", Integer, nullable=False),
    Column("took_s", Float),
    Column("began", Float),
    Column("answer", Text),
    Column("ended", Integer),
)

Index("lease_tasks_by_state", TASKS.c.queue, TASKS.c.state, TASKS.c.number)
Index("lease_tasks_by_group", TASKS.c.queue, TASKS.c.alone, TASKS.c.stage)
Index(
    "lease_tasks_one_of_a_group",
    TASKS.c.queue,
    TASKS.c.alone,
    unique=True,
    sqlite_where=text("state = 'taken' AND alone IS NOT NULL"),
    postgresql_where=text("state = 'taken' AND alone IS NOT NULL"),
)
