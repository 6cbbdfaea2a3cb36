"""Assertions of the demo."""


class DidNotHold(Exception):
    """A guarantee of Sluice was not met. The message is for the user."""


def must(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - it reads as an assertion, which `python -O` drops
    if not holds:
        raise DidNotHold(otherwise)
