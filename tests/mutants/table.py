"""All mutants."""

from tests.mutants import jobs, leases, shared

TABLES = {"leases": leases.MUTANTS, "jobs": jobs.MUTANTS, "shared": shared.MUTANTS}
MUTANTS = [mutant for table in TABLES.values() for mutant in table]
