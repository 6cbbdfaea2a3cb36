from django.db import models


class File(models.Model):
    """What lies at an object key, and that it is whole: the reuse cache.

    A row is written in the statement that ends the chunk which made the file, so it never vouches for an upload
    that a stale worker left behind. The object counts as valid only while its ETag is the one noted here.
    """

    path = models.CharField(primary_key=True, max_length=1024)
    dataset = models.ForeignKey("exports.Dataset", models.CASCADE, related_name="files")
    schema_version = models.PositiveIntegerField()
    key = models.CharField(max_length=255)
    effective_date = models.DateField()
    etag = models.CharField(max_length=80)
    sha256 = models.CharField(max_length=64)
    rows = models.BigIntegerField()
    bytes = models.BigIntegerField()
    header_bytes = models.PositiveIntegerField(default=0)
    data_as_of = models.DateTimeField(help_text="When the source was read")

    class Meta:
        db_table = "exports_file"

    def __str__(self) -> str:
        return f"{self.key} {self.effective_date}"
