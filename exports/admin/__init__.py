"""The staff's pages: everything can be looked at, little can be typed in. Outcomes are written by the workers alone."""

from exports.admin import datasets, deliveries, jobs, machinery, overview, quotas, webhooks

__all__ = ["datasets", "deliveries", "jobs", "machinery", "overview", "quotas", "webhooks"]
