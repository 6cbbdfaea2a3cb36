"""The staff's pages: everything can be looked at, little can be typed in. Outcomes are written by the workers alone."""

from exports.admin import datasets, jobs, machinery, overview, quotas, receipts, webhooks

__all__ = ["datasets", "jobs", "machinery", "overview", "quotas", "receipts", "webhooks"]
