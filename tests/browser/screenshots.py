"""Screenshots of every page for `make screenshots`: in light and dark, and on a phone; empty, busy, and failed.

They are saved in .local/screenshots as <scene>-<look>.png, with an index.html. They are not part of the test suite and
assert only the status of each page.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from playwright.sync_api import Browser

from config.dev.stack.processes import Web
from config.platform.models import SecondFactor
from tests.browser import scenes_admin, scenes_documents, scenes_exports, scenes_rules, scenes_webhooks
from tests.browser.conftest import HOST, sign_in
from tests.browser.scenes import Scene

FOLDER = Path(settings.BASE_DIR) / ".local" / "screenshots"
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": WIDE},
    "dark": {"color_scheme": "dark", "viewport": WIDE},
    "phone": {"color_scheme": "light", "viewport": NARROW},
}
MAX_HEIGHT = 4000  # pixels; a longer page is cut off


def with_factors(user: User) -> None:
    SecondFactor.objects.create(user=user, kind=SecondFactor.Kind.TOTP, name="Work phone", secret=b"x" * 20)
    SecondFactor.objects.create(user=user, kind=SecondFactor.Kind.WEBAUTHN, name="Blue key", secret=b"x")


PLATFORM_SCENES = [
    Scene(name="home", path=lambda _: "/", anonymous=True),
    Scene(name="sign-in", path=lambda _: "/app/sign-in", anonymous=True),
    Scene(name="account", path=lambda _: "/app/account"),
    Scene(name="password", path=lambda _: "/app/account/password"),
    Scene(name="second-factors", path=lambda _: "/app/account/second-factors", prepare=with_factors),
    Scene(name="confirm-password", path=lambda _: "/app/account/second-factors/confirm"),
    Scene(name="add-authenticator-app", path=lambda _: "/app/account/second-factors/app"),
    Scene(name="add-security-key", path=lambda _: "/app/account/second-factors/key"),
    Scene(name="not-found", path=lambda _: "/app/nothing", status=404),
    Scene(name="api-docs", path=lambda _: "/api/docs", anonymous=True),
]
MODULES = (scenes_exports, scenes_documents, scenes_rules, scenes_webhooks, scenes_admin)
SCENES: list[Scene] = [*PLATFORM_SCENES, *(scene for module in MODULES for scene in module.SCENES)]
INDEX = "<!doctype html><title>Screenshots</title><style>img {{ max-width: 100%; border: 1px solid }}</style>{}"
FIGURE = '<figure><figcaption>{0}</figcaption><img loading="lazy" src="{0}" alt=""></figure>\n'


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    yield FOLDER
    names = sorted(path.name for path in FOLDER.glob("*.png"))
    (FOLDER / "index.html").write_text(INDEX.format("".join(map(FIGURE.format, names))))


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_take_screenshot(scene: Scene, browser: Browser, web: Web, alice: User, folder: Path) -> None:
    if scene.staff:
        User.objects.filter(pk=alice.pk).update(is_staff=True, is_superuser=True)
    scene.prepare(alice)
    path = scene.path(alice)
    for look, options in LOOKS.items():
        context = browser.new_context(base_url=f"http://{HOST}:{web.port}", reduced_motion="reduce", **options)
        if not scene.anonymous:
            sign_in(context, alice)
        page = context.new_page()
        response = page.goto(path)
        assert response
        assert response.status == scene.status
        page.wait_for_timeout(500)  # for htmx and charts
        height = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({"width": options["viewport"]["width"], "height": max(844, min(height, MAX_HEIGHT))})
        page.screenshot(path=folder / f"{scene.name}-{look}.png")
        context.close()
