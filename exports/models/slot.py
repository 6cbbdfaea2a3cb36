from django.db import models


class SlotQuerySet(models.QuerySet["Slot"]):
    def provide(self, *, count: int, dataset: models.Model | None = None) -> None:
        """Create the slots 1 to `count` that do not exist yet, for one dataset or for all datasets together.

        Slots are never removed: a claim only considers numbers up to the current limit.
        """
        self.bulk_create(
            [self.model(dataset_id=dataset.pk if dataset else None, number=n) for n in range(1, count + 1)],
            ignore_conflicts=True,
        )

    def held(self) -> "SlotQuerySet":
        return self.filter(token__isnull=False)


class Slot(models.Model):
    """Permission for one concurrent call of the source database.

    Rows without a dataset limit the calls of all datasets together. Rows with a dataset limit the calls of that
    dataset. A slot without a token is free. A slot whose lease has expired isn't free yet: the reaper first ends the
    query that may still run under it, so the limit holds even if a worker is suspended or lost.
    """

    dataset = models.ForeignKey("exports.Dataset", models.CASCADE, null=True, blank=True, db_index=False)
    number = models.PositiveSmallIntegerField()
    token = models.BigIntegerField(null=True, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)
    job_id = models.UUIDField(null=True, blank=True)
    chunk_id = models.BigIntegerField(null=True, blank=True)  # the first chunk of the claim
    backend = models.CharField(
        max_length=63, default="", blank=True, help_text="application_name of the connection that runs the call"
    )

    objects = SlotQuerySet.as_manager()

    class Meta:
        db_table = "exports_slot"
        verbose_name = "source call"  # the name in the admin's menu
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
