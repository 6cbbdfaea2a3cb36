"""Diagnosis of an installation: `manage.py doctor`.

A subject is a system to check, such as the database. It is opened once; its checks run in sequence. Subjects
run in parallel, each in its own thread, and the diagnosis ends after `examination.TOTAL_SECONDS`.
The doctor changes nothing except objects under `_receipts/probe/`, which it deletes. If it is killed, the hourly sweep
and the bucket's lifecycle rules delete them.
"""
