"""What all apps' staff pages share, and the pages of users and their tokens."""

from config.admin import accounts

__all__ = ["accounts"]
