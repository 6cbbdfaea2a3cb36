from django.apps import AppConfig


class RulesConfig(AppConfig):
    """The rules of document ETL: JSON Schema, prompt and strategy, in versions."""

    name = "rules"
