"""Access control: users, tokens, roles, private groups and the audit log."""
