"""The local provider: OCR on the worker's machine, without a server or network."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etl.providers.local.provider import LocalProvider

__all__ = ["LocalProvider"]


def __getattr__(name: str) -> Any:
    # Imported late, because the reader process imports this package too. It must start quickly, and without Django,
    # whose settings contain secrets.
    if name == "LocalProvider":
        from etl.providers.local.provider import LocalProvider

        return LocalProvider
    raise AttributeError(name)
