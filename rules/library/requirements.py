"""What a rule needs of the service, told by the settings alone: nobody is called."""

from django.conf import settings

from rules.models.rule import LLM

NO_MODEL = "needs a language model, and none is configured"


def has_model() -> bool:
    """Tell whether a language model is set up. Whether it answers is another matter."""
    env = settings.SLUICE
    return bool(env.etl_llm_base_url and env.etl_llm_model)


def lacks_model(mode: str) -> bool:
    """Tell whether rules of this mode cannot work here, for want of a language model.

    Only of our own mode: what a mode that an operator added needs, its class alone knows.
    """
    return mode == LLM and not has_model()


def marked(name: str, *, mode: str) -> str:
    """Return a rule's name as menus have it, with what it lacks."""
    return f"{name} ({NO_MODEL})" if lacks_model(mode) else name
