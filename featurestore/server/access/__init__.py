"""Who comes in and what they may do: users, tokens, roles, private groups, the audit log."""
