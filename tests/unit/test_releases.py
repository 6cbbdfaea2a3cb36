"""The patches of the simulated releases, compared with the code. `make operations` runs these releases."""

import pytest

from tests.operations.releases import EARLIER, PATCHES, patched_text


@pytest.mark.parametrize("patches", [PATCHES, EARLIER], ids=["next", "earlier"])
def test_each_patch_applies_to_this_code(patches: dict[str, tuple[str, str]]) -> None:
    for name in patches:
        assert patched_text(name, patches)
