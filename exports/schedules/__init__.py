"""Recurring exports: timetables, the scheduler, and changes by owners."""
