"""The fault points of the chaos tests, compared with the code.

In chaos tests, a process only logs that a function does not exist, and continues without the fault points.
"""

from functools import reduce
from importlib import import_module

import pytest

from tests.chaos.points import POINTS


@pytest.mark.parametrize("place", [place for place, _ in POINTS.values()])
def test_the_function_of_a_fault_point_exists(place: str) -> None:
    module, _, path = place.partition(":")
    assert callable(reduce(getattr, path.split("."), import_module(module)))
