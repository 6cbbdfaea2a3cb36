"""Sizes of values in the database, to decide which rows are read."""

from django.db.models import TextField
from django.db.models.functions import Cast, Coalesce, Length


def text_size(field: str) -> Coalesce:
    """Return the number of characters of a field as text, such as of its JSON, or 0 for NULL."""
    return Coalesce(Length(Cast(field, TextField())), 0)
