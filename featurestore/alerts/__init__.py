"""Alerts: incidents of jobs create messages in an outbox, which is sent to channels.

``incidents`` decides about messages and sends them, ``channels`` manages destinations and implements
their protocols.
"""
