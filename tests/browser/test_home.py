"""The browser of tests and of the demo leaves nothing in the home directory."""

from pathlib import Path

import pytest

from tests.docs.viewing import in_browser


def test_chromium_writes_nothing_into_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    in_browser(lambda browser: browser.new_page().close())
    assert list(tmp_path.rglob("*")) == []
