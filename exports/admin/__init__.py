"""The staff's pages: everything can be looked at, little can be typed in. Outcomes are written by the workers alone."""

from exports.admin import datasets, jobs, overview, quotas, receipts, slots, webhooks

__all__ = ["datasets", "jobs", "overview", "quotas", "receipts", "slots", "webhooks"]
