"""The local stack: Postgres, Valkey and SeaweedFS from wheels, and Sluice's own processes.

Read it from `local` (the whole) down to `servers` (the three), `server` (one) and `process`. Nothing in here imports
Django's settings: they need the environment that the stack only makes.
"""
