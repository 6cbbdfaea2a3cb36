"""The fault points of the chaos tests, compared with the code.

If a function does not exist, the processes in chaos tests only log this, so it is checked here.
"""

from functools import reduce
from importlib import import_module

import pytest

from tests.chaos.points import POINTS


@pytest.mark.parametrize("place", [place for place, _ in POINTS.values()])
def test_the_function_of_a_fault_point_exists(place: str) -> None:
    module, _, path = place.partition(":")
    assert callable(reduce(getattr, path.split("."), import_module(module)))
