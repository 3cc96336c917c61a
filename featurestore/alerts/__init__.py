"""Alerts: incidents of jobs create messages in an outbox, which is sent to channels.

``incidents`` decides about messages, ``outbox`` sends them, ``channels`` manages destinations,
``senders`` implements their protocols.
"""
