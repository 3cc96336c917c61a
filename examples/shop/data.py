"""What happens in the shop: orders in a database, clicks in a topic."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

FIRST = datetime(2024, 1, 1, tzinfo=UTC)
CLICKS_EACH = 30


def fill_database(url: str, *, customers: int) -> None:
    """Make the table of orders: one order for each customer, some of whom buy again."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as database:
        database.execute(
            "create table orders (id bigint primary key, customer text, total float8, "
            "ordered_at timestamptz, bought_again boolean)"
        )
        with database.cursor() as cursor:
            for number in range(customers):
                at = FIRST + timedelta(days=1, minutes=37 * number % 8000)
                row = (number, f"c{number}", 5.0 + number % 90, at, number % 3 == 0)
                cursor.execute("insert into orders values (%s, %s, %s, %s, %s)", row)


def send_clicks(brokers: str, *, customers: int) -> None:
    """Make the topic of clicks; one of them is no JSON."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic("clicks", num_partitions=4, replication_factor=1)])[
        "clicks"
    ].result()
    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 5})
    for number in range(customers * CLICKS_EACH):
        customer = f"c{number % customers}"
        at = FIRST + timedelta(seconds=number * 7 * 86_400 // (customers * CLICKS_EACH))
        click = {
            "click": number,
            "customer": customer,
            "page": f"p{number % 11}",
            "at": at.isoformat(),
        }
        producer.produce("clicks", json.dumps(click).encode(), key=customer.encode())
        producer.poll(0)
    producer.produce("clicks", b"a robot was here")
    producer.flush()
