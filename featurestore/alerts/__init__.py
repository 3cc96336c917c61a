"""Alerts: incidents of jobs create messages in an outbox, which are sent to channels.

``incidents`` creates and sends messages, ``channels`` manages destinations and implements their
protocols.
"""
