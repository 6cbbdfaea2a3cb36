"""All mutants."""

from tests.mutants import grants, jobs, leases, shared

TABLES = {"leases": leases.MUTANTS, "jobs": jobs.MUTANTS, "grants": grants.MUTANTS, "shared": shared.MUTANTS}
MUTANTS = [mutant for table in TABLES.values() for mutant in table]
