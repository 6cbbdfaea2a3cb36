"""Shared code of the admin, and the admin pages of users, tokens, and the audit log."""

from config.platform.admin import accounts, audit_log

__all__ = ["accounts", "audit_log"]
