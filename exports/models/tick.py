from django.db import models


class Tick(models.Model):
    """The last run of a periodic task. The lock on the row prevents duplicate runs by a second scheduler."""

    name = models.CharField(primary_key=True, max_length=40)
    ran_at = models.DateTimeField()

    class Meta:
        db_table = "exports_tick"
        verbose_name = "periodic task"

    def __str__(self) -> str:
        return f"{self.name} {self.ran_at:%Y-%m-%d %H:%M:%S}"
