"""Password sign-in for pages and the admin, with rate limits."""

from hashlib import sha256
from typing import Any

import structlog
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse

from config.platform.http.addresses import counted_as
from config.platform.http.audit import NOTHING
from config.platform.http.throttling import limiter, rate
from config.platform.ui.templatetags.pages import duration

log = structlog.get_logger(__name__)

BY_NAME = 30
WAIT = "sign_in_wait"  # request attribute: seconds until the next attempt is allowed


class Backend(ModelBackend):
    """Password check with rate limits: SIGN_IN_RATE per address, and BY_NAME times that per username.

    Correct passwords count too. The limit per address stops guesses of many usernames; the limit per username stops
    guesses from many addresses. Attempts that the address limit refuses do not count for the username, so that one
    address cannot lock users out. Without Valkey the limits are off, so that staff can still sign in to fix it.
    """

    def authenticate(self, request: HttpRequest | None, **words: Any) -> User | None:  # type: ignore[override]
        """Check the rate limits, then the credentials: `username` and `password`."""
        if request is not None and (seconds := seconds_to_wait(request, words.get("username") or "")):
            setattr(request, WAIT, seconds)
            log.warning("sign_in_refused", seconds=seconds)
            raise PermissionDenied  # stops Django from trying other backends
        return super().authenticate(request, **words)


def seconds_to_wait(request: HttpRequest, name: str) -> int:
    """Count an attempt and return 0, or return the seconds until the next one is allowed."""
    who = sha256(name.casefold().encode()).hexdigest()  # usernames are personal data of any length
    by_address = rate("sign_in_rate")
    by_name = type(by_address)(by_address.amount * BY_NAME, by_address.multiples, namespace="sign_in_rate_of_a_name")
    return limiter().wait(by_address, f"from:{counted_as(request)}") or limiter().wait(by_name, f"as:{who}")


class SignInForm(AuthenticationForm):
    error_messages = {
        "invalid_login": "Incorrect username or password. Both are case-sensitive.",
        "inactive": "This account is disabled.",
    }

    def get_invalid_login_error(self) -> ValidationError:
        if seconds := getattr(self.request, WAIT, 0):
            return ValidationError(f"Too many attempts. Try again in {duration(seconds)}.", code="rate_limited")
        return super().get_invalid_login_error()


class SignIn(LoginView):
    audited = NOTHING
    template_name = "config/sign_in.html"
    authentication_form = SignInForm

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        log.info("signed_in")
        return super().form_valid(form)

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        log.warning("sign_in_failed")
        return super().form_invalid(form)
