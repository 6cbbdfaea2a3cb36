"""Blocking methods, made from the coroutines of the asynchronous client. See ADR 53."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Methods:
    """Base class of blocking wrappers. `coroutines`: the wrapped object, whose methods are coroutines."""

    def __init__(self, coroutines: Any) -> None:
        self.coroutines = coroutines


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that does all I/O through `network.Blocking`, so that it never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("A coroutine of the blocking client was suspended.")


def method(function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that runs a coroutine function, with the same parameters and docstring."""

    @wraps(function)
    def call(self: Methods, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(function(self.coroutines, *args, **kwargs))

    return call


def iterator(function: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Return a method that yields the results of an asynchronous generator."""

    @wraps(function)
    def call(self: Methods, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        results: Any = function(self.coroutines, *args, **kwargs)
        try:
            while True:
                try:
                    yield run(anext(results))
                except StopAsyncIteration:
                    return
        finally:
            run(results.aclose())

    return call
