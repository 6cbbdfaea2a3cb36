"""Pages of exports, schedules, and webhooks."""
