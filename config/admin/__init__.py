"""What all apps' staff pages share; the first of them; and the pages of users, their tokens, and what staff did."""

from config.admin import accounts, audit

__all__ = ["accounts", "audit"]
