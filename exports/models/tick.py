from django.db import models


class Tick(models.Model):
    """When periodic work last ran. One row a name: its lock is what makes a second beat harmless."""

    name = models.CharField(primary_key=True, max_length=40)
    ran_at = models.DateTimeField()

    class Meta:
        db_table = "exports_tick"

    def __str__(self) -> str:
        return f"{self.name} {self.ran_at:%Y-%m-%d %H:%M:%S}"
