"""Fault proxies, which end with the block that uses them. A thread that still runs would poll a closed socket."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.client import fault_proxy
from tests.integration import faulty_s3


@pytest.mark.parametrize("running", [faulty_s3.running, fault_proxy.running])
def test_a_proxy_ends_with_a_block_that_fails(running: Callable[[str], Any]) -> None:
    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="failed"), running("http://127.0.0.1:9"):
        raise ValueError("failed")
    assert set(threading.enumerate()) <= before
