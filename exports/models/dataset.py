import re
from collections.abc import Callable
from typing import Any

from django.contrib.auth.models import User
from django.contrib.postgres.expressions import ArraySubquery
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Case, Exists, OuterRef, Value, When

from config.platform import built_in_datasets
from config.platform.built_in_datasets import BuiltInDataset
from exports.core import key_patterns
from exports.models.grant import Grant, check_key_pattern
from exports.models.slot import Slot


class Format(models.TextChoices):
    CSV = "csv"
    JSONL = "jsonl"
    JSON = "json"
    PARQUET = "parquet"


class Kind(models.TextChoices):
    """The origin of a dataset's rows: a function in the source database, or the documents in this service."""

    FUNCTION = "function"
    DOCUMENTS = "documents"


FORMATS = Format.values
BUILT_IN = [kind.value for kind in Kind if kind != Kind.FUNCTION]
MAX_TIMEOUT = 540  # seconds
DEFAULT_KEY_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

base_path_shape = RegexValidator(
    r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*\Z",
    "Segments of letters, digits, '.', '_' and '-', joined by '/'; each begins with a letter or a digit.",
)


# The first segment of the object keys of documents. Their cleanup deletes old objects, so no dataset can use it.
RESERVED = "etl"


def default_formats() -> list[str]:
    return list(FORMATS)


class DatasetQuerySet(models.QuerySet["Dataset"]):
    def with_own_path(self) -> "DatasetQuerySet":
        """Exclude datasets that were registered before their path became reserved."""
        return self.exclude(models.Q(base_path=RESERVED) | models.Q(base_path__startswith=f"{RESERVED}/"))

    def granted_to(self, user_id: int) -> "DatasetQuerySet":
        """Return the datasets that a user may export: those without grants, and those granted to a group of the user.

        Superusers may export all datasets. The result is annotated with `granted_patterns`, the key patterns of the
        user's grants, or None if the user may export all keys.
        """
        grants = Grant.objects.filter(dataset=OuterRef("pk"))
        own = grants.filter(group__user=user_id)
        is_unlimited = (
            ~Exists(grants)
            | Exists(own.filter(key_pattern=""))
            | Exists(User.objects.filter(pk=user_id, is_superuser=True))
        )
        patterns = ArraySubquery(own.order_by("pk").values("key_pattern"))
        return self.annotate(granted_patterns=Case(When(is_unlimited, then=Value(None)), default=patterns)).filter(
            is_unlimited | Exists(own)
        )

    def in_order(self) -> "DatasetQuerySet":
        """Order by name, with built-in datasets last."""
        return self.order_by(Case(When(kind=Kind.FUNCTION, then=0), default=1), "name")

    def of_functions(self) -> "DatasetQuerySet":
        return self.filter(kind=Kind.FUNCTION)

    def provide_built_in(self) -> None:
        """Create the built-in datasets, or update their columns. A registered dataset with the same name is kept."""
        for each in built_in_datasets.all_by_name().values():
            new = self.model(
                name=each.name,
                kind=each.name,
                function="",
                base_path=f"_{each.name}",  # no other dataset's path begins with an underscore
                formats=list(each.formats),
                columns=list(each.columns),
                statement_timeout=MAX_TIMEOUT,
                max_concurrency=2,
            )
            self.bulk_create([new], ignore_conflicts=True)
            mine = self.filter(kind=each.name)
            mine.update(columns=new.columns)
            for dataset in mine:
                Slot.objects.provide(count=dataset.max_concurrency or 0, dataset=dataset)


class Dataset(models.Model):
    """A dataset that can be exported: a function of the source database, and a folder for its files.

    A built-in dataset has no function, and its files are not reused: see `config.platform.built_in_datasets`.
    """

    name = models.SlugField(unique=True)
    kind = models.CharField(max_length=16, choices=Kind, default=Kind.FUNCTION, db_default=Kind.FUNCTION)
    function = models.CharField(
        max_length=255,
        help_text="schema.name, exactly as the database knows it; split at the first dot. "
        "It takes (key text, effective_date date) and returns a table.",
    )
    base_path = models.CharField(max_length=255, unique=True, validators=[base_path_shape])
    schema_version = models.PositiveIntegerField(default=1, help_text="Files of older versions are not reused.")
    formats = ArrayField(models.CharField(max_length=8), default=default_formats)
    key_pattern = models.CharField(max_length=255, default=DEFAULT_KEY_PATTERN, validators=[check_key_pattern])
    statement_timeout = models.PositiveIntegerField(
        default=300,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_TIMEOUT)],
        help_text="Seconds. Below the workers' own time limit of 600 s.",
    )
    max_concurrency = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Maximum of concurrent calls of this dataset's function. Empty: only EXPORT_DB_SLOTS limits them.",
    )
    reuse_max_age = models.PositiveIntegerField(
        null=True, blank=True, help_text="Seconds after which a file is no longer reused. Empty: no limit."
    )
    allow_writes = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Run calls in a transaction that is committed after the last row. Otherwise calls are read-only.",
    )
    show_errors = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Show owners of exports the source's message of a failed chunk. It may quote data.",
    )
    columns = models.JSONField(
        null=True,
        blank=True,
        editable=False,
        help_text="Columns of the function, as of the latest registration: name and type. Null if not known yet.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects = DatasetQuerySet.as_manager()

    granted_patterns: list[str] | None  # annotated by `granted_to`

    class Meta:
        db_table = "exports_dataset"

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        super().save(*args, **kwargs)
        Slot.objects.provide(count=self.max_concurrency or 0, dataset=self)

    @property
    def built_in(self) -> BuiltInDataset | None:
        return None if self.kind == Kind.FUNCTION else built_in_datasets.get(self.kind)

    @property
    def schema_and_name(self) -> tuple[str, str]:
        schema, _, name = self.function.partition(".")
        return schema, name

    def key_check(self) -> Callable[[str], bool]:
        """Return a predicate for keys that match the dataset's pattern and are granted to the user of `granted_to`."""
        fits, is_granted = re.compile(self.key_pattern).fullmatch, self.grant_check()
        return lambda key: bool(fits(key)) and is_granted(key)

    def key_examples(self) -> list[str]:
        """Return examples of keys that the user may export: at most one for each pattern."""
        patterns = [self.key_pattern] if self.granted_patterns is None else self.granted_patterns
        return list(filter(self.key_check(), filter(None, map(key_patterns.example_of, patterns))))

    def grant_check(self) -> Callable[[str], bool]:
        """Return a predicate for keys that the user of `granted_to` may export."""
        if self.granted_patterns is None:
            return lambda _key: True
        granted = [re.compile(pattern).fullmatch for pattern in self.granted_patterns]
        return lambda key: any(fits(key) for fits in granted)

    def clean(self) -> None:
        if built_in := self.built_in:
            if unknown := set(self.formats) - set(built_in.formats):
                raise ValidationError({"formats": f"This dataset does not support: {', '.join(sorted(unknown))}."})
            return
        if "" in self.schema_and_name:
            raise ValidationError({"function": "Enter the function as schema.name."})
        if unknown := set(self.formats) - set(FORMATS):
            raise ValidationError({"formats": f"Unknown formats: {', '.join(sorted(unknown))}."})
        if self.base_path.split("/")[0].lower() == RESERVED:  # a store on a file system may ignore case
            raise ValidationError(
                {"base_path": f"Paths below '{RESERVED}' are reserved for documents. Use another folder."}
            )
        if other := self._sharing_a_path():
            raise ValidationError(
                {"base_path": f"Files would overwrite those of {other}, whose base path overlaps. Use another folder."}
            )

    def _sharing_a_path(self) -> "Dataset | None":
        """Return another dataset whose folder is the same, contains this dataset's folder, or is inside it."""
        ours = f"{self.base_path}/"
        for other in Dataset.objects.exclude(pk=self.pk):
            theirs = f"{other.base_path}/"
            if ours.startswith(theirs) or theirs.startswith(ours):
                return other
        return None
