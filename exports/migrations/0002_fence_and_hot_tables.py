from django.db import migrations

from config.platform.db import repeatable

# Fencing tokens must grow over all chunks and jobs, and never come back: a sequence does just that.
# The hot tables leave room on each page, so that an update stays on its page and touches no index (HOT), and are
# vacuumed long before a fifth of their rows is dead.
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
