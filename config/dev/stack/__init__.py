"""The local stack: Postgres, Valkey, and SeaweedFS from wheels, and Sluice's own processes.

`local` is the whole stack, `servers` the three servers, `server` the base of each, and `process` a single process. No
module except `prepare` imports Django's settings, which need the environment that the stack creates.
"""
