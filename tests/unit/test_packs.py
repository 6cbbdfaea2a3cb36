"""Groups of files that one request reads from a pack. P4."""

import pytest

from exports.delivery import packs
from exports.models import Chunk

LIMIT = packs.PACKED_BYTES


def chunks(*files: tuple[int | None, int, int]) -> list[Chunk]:
    """Return chunks of files with a pack, a position in the pack, and a size."""
    return [Chunk(pack=pack, pack_offset=offset, bytes=size) for pack, offset, size in files]


@pytest.mark.parametrize(
    ("files", "sizes"),
    [
        pytest.param([], [], id="no files"),
        pytest.param([(1, 0, 10), (1, 9, 20), (1, 25, 0)], [3], id="in the same pack"),
        pytest.param([(1, 0, 10), (2, 10, 10), (1, 10, 10)], [1, 1, 1], id="in different packs"),
        pytest.param([(None, 0, 10), (None, 0, 10)], [1, 1], id="in no pack"),
        pytest.param([(1, 0, 10), (None, 0, 10), (1, 10, 10)], [1, 1, 1], id="in the same pack, but not in sequence"),
        pytest.param([(1, 20, 10), (1, 0, 10), (1, 10, 10)], [1, 2], id="before the first one"),
        pytest.param([(1, 0, LIMIT), (1, 10, 1)], [1, 1], id="of too many bytes"),
        pytest.param(
            [(1, 0, LIMIT // 2), (1, 10, LIMIT // 2), (1, 20, 1), (1, 30, 1)], [2, 2], id="of just enough bytes"
        ),
        pytest.param([(1, 0, 1), (1, LIMIT, 1), (1, LIMIT + 1, 1)], [2, 1], id="too far from the first one"),
    ],
)
def test_files_that_one_request_can_read_are_grouped(
    files: list[tuple[int | None, int, int]], sizes: list[int]
) -> None:
    """The memory of a group is bounded, whatever the order and compression of its files."""
    given = chunks(*files)
    groups = list(packs.grouped(given))
    assert [len(group) for group in groups] == sizes
    assert [chunk for group in groups for chunk in group] == given
