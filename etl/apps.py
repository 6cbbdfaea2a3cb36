from django.apps import AppConfig


class EtlConfig(AppConfig):
    """Document ETL: documents into Markdown, and Markdown into JSON by rules."""

    name = "etl"
    verbose_name = "documents"

    def ready(self) -> None:
        from config.platform.observability.gauges import GaugeQuery, register
        from etl.core import gauges, metrics  # noqa: F401 - every series exists from the first scrape on
        from etl.pipeline import checks  # noqa: F401 - registers checks

        register(GaugeQuery(gauges.GAUGES, dict, gauges.collect))
