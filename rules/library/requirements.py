"""What a rule needs from the service, decided by settings only, without network access."""

from django.conf import settings

from rules.models.rule import LLM

NO_MODEL = "needs a language model, and none is configured"


def has_model() -> bool:
    """Return whether a language model is configured. It may still be unreachable."""
    env = settings.SLUICE
    return bool(env.etl_llm_base_url and env.etl_llm_model)


def lacks_model(mode: str) -> bool:
    """Return whether rules of this mode cannot run, because no language model is configured.

    This only knows the built-in mode. Modes that an operator added have requirements of their own.
    """
    return mode == LLM and not has_model()


def marked(name: str, *, mode: str) -> str:
    """Return a rule's name for menus, with a note if it needs a language model that is missing."""
    return f"{name} ({NO_MODEL})" if lacks_model(mode) else name
