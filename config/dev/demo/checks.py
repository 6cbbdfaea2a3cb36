"""Assertions of the demo."""


class CheckFailed(Exception):
    """A check of the demo failed. The message is for the user."""


def require(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - reads like an assertion, which `python -O` would drop
    if not holds:
        raise CheckFailed(otherwise)
