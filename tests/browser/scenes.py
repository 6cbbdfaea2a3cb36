"""The scenes of `make screenshots`."""

from collections.abc import Callable
from dataclasses import dataclass

from django.contrib.auth.models import User


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A page in a certain state. `prepare` creates the rows of the given user, and `path` returns the page's path."""

    name: str  # such as exports-busy
    path: Callable[[User], str]
    prepare: Callable[[User], None] = lambda _: None
    staff: bool = False
    anonymous: bool = False
    status: int = 200
