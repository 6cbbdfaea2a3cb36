from django.db import models


class File(models.Model):
    """An entry of the reuse cache: a complete file and its object key.

    The statement that records a chunk's outcome also writes the row of its file, so the upload of a stale worker is
    never referenced. The object is valid only while its ETag is the recorded one.
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
    data_as_of = models.DateTimeField(help_text="When the source database was read.")
    upload_number = models.BigIntegerField(
        db_default=0, default=0, help_text="Larger than the numbers of all objects that this one replaced."
    )

    class Meta:
        db_table = "exports_file"

    def __str__(self) -> str:
        return f"{self.key} {self.effective_date}"
