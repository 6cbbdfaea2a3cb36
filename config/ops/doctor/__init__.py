"""`manage.py doctor`: is everything here as Sluice needs it, and if not, what is to be done?

A subject is a thing to look at, such as the database: it is opened once, and its checks look at it one after the other.
Subjects are looked at side by side, each in a thread of its own; it is over after `examination.TOTAL_SECONDS`.
Nothing is changed but objects under `_receipts/doctor/`, which are deleted again; the sweep and the bucket's own rules
would take what a doctor that was killed leaves there.
"""
