"""The local provider: no server and no network, only the machine that the worker runs on."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etl.providers.local.provider import LocalProvider

__all__ = ["LocalProvider"]


def __getattr__(name: str) -> Any:
    # Late, because the process that reads the documents imports this package too: it shall know nothing of Django, its
    # settings and their secrets, and start quickly.
    if name == "LocalProvider":
        from etl.providers.local.provider import LocalProvider

        return LocalProvider
    raise AttributeError(name)
