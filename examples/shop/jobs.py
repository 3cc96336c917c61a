"""The jobs of the shop: orders from its database, clicks from its topic."""

import featurestore

clicks = featurestore.stream_job(
    "clicks",
    source="events",
    topic="clicks",
    schema={"click": "int64", "customer": "string", "page": "string", "at": "timestamp"},
    primary_key="click",
    event_time="at",
    trigger="10s",
)

orders = featurestore.sql_job(
    "orders",
    sql="select id, customer, total, ordered_at, bought_again from orders",
    primary_key="id",
    event_time="ordered_at",
    schedule="0 0 * * *",
    start="2024-01-01T00:00Z",
    closed="left",
    inputs={"orders": featurestore.source("shop", table="orders", time="ordered_at")},
)
