"""What the demo expects to hold."""


class DidNotHold(Exception):
    """Something that Sluice promises did not hold. The message says what, for a person."""


def must(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - it reads as an assertion, which `python -O` drops
    if not holds:
        raise DidNotHold(otherwise)
