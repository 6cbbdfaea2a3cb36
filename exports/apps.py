from django.apps import AppConfig


class ExportsConfig(AppConfig):
    """Exports: many (key, date) slices of a dataset into files, and one-time links to them."""

    name = "exports"
