"""Alerts: incidents of jobs become messages in the outbox, and are sent to channels.

``incidents`` decides what is worth a message, ``outbox`` sends, ``channels`` knows where to,
``senders`` how.
"""
