"""Admin of exports. Mostly read-only: only workers write outcomes."""

from exports.admin import datasets, jobs, overview, quotas, receipts, schedules, slots, webhooks

__all__ = ["datasets", "jobs", "overview", "quotas", "receipts", "schedules", "slots", "webhooks"]
