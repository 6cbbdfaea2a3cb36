from django.db import migrations

from config.platform.db import repeatable

# Fencing tokens must increase across all chunks and jobs and must never be reused, so they come from a sequence.
# Tables with frequent updates leave free space on each page, so that heap-only tuple (HOT) updates write no indexes.
# They are vacuumed long before 20% of their rows are dead, which is Postgres' default.
FORWARD = """
CREATE SEQUENCE exports_fence_seq;
ALTER TABLE exports_chunk SET (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02,
                               autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE exports_jobs SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
ALTER TABLE exports_slot SET (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
"""
BACKWARD = """
ALTER TABLE exports_slot RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
ALTER TABLE exports_jobs RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold);
ALTER TABLE exports_chunk RESET (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_insert_scale_factor,
                                 autovacuum_analyze_scale_factor);
DROP SEQUENCE exports_fence_seq;
"""


class Migration(repeatable.Migration):
    dependencies = [("exports", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
