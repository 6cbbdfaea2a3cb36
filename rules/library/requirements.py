"""Requirements of rules, checked against the settings without network access."""

from django.conf import settings

from rules.models.rule import LLM

NO_MODEL = "needs a language model, and none is configured"


def has_model() -> bool:
    """Return whether a language model is configured. It may still be unreachable."""
    env = settings.SLUICE
    return bool(env.etl_llm_base_url and env.etl_llm_model)


def lacks_model(mode: str) -> bool:
    """Return whether rules with this mode cannot run because no language model is configured.

    Only the built-in mode is checked. Other requirements of custom modes are unknown here.
    """
    return mode == LLM and not has_model()
