"""Recurring exports: timetables, the scheduler, and the actions of owners."""
