from django.db import models


class SlotQuerySet(models.QuerySet["Slot"]):
    def provide(self, *, count: int, dataset: models.Model | None = None) -> None:
        """Create the missing ones of slots 1 to `count`, for all datasets together or for one.

        None are removed: a claim only considers numbers up to the current limit.
        """
        self.model.objects.bulk_create(
            [self.model(dataset_id=dataset.pk if dataset else None, number=n) for n in range(1, count + 1)],
            ignore_conflicts=True,
        )

    def held(self) -> "SlotQuerySet":
        return self.filter(token__isnull=False)


class Slot(models.Model):
    """Permission for one concurrent call into the source database.

    There is one row for each call that may run. Rows without a dataset limit all calls together, rows with one limit
    the calls of that dataset. A slot without a token is free. A slot whose lease expired is not free yet: the reaper
    first ends the query that may still run under it, so the limit holds even when a worker is stopped.
    """

    dataset = models.ForeignKey("exports.Dataset", models.CASCADE, null=True, blank=True, db_index=False)
    number = models.PositiveSmallIntegerField()
    token = models.BigIntegerField(null=True, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    job_id = models.UUIDField(null=True, blank=True)
    chunk_id = models.BigIntegerField(null=True, blank=True)
    backend = models.CharField(
        max_length=63, default="", blank=True, help_text="application_name of the connection that runs the call"
    )

    objects = SlotQuerySet.as_manager()

    class Meta:
        db_table = "exports_slot"
        verbose_name = "source call"  # as the admin's menu calls it
        constraints = [
            models.UniqueConstraint(fields=["dataset", "number"], name="exports_slot_number", nulls_distinct=False),
            models.CheckConstraint(
                name="exports_slot_held_has_lease",
                condition=models.Q(token__isnull=True, lease_until__isnull=True)
                | models.Q(token__isnull=False, lease_until__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.dataset or 'all'} #{self.number}"
