from django.apps import AppConfig


class EtlConfig(AppConfig):
    """Document ETL: documents into Markdown, and Markdown into JSON by rules."""

    name = "etl"
