"""What all apps' staff pages share; the first of them; and the pages of users, their tokens, and what staff did."""

from config.platform.admin import accounts, audit_log

__all__ = ["accounts", "audit_log"]
