"""Signing in with a password, here and in the staff's pages, no more often than a person would."""

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
from config.platform.http.throttling import limiter, rate

log = structlog.get_logger(__name__)

BY_NAME = 30
WAIT = "sign_in_wait"  # on the request: seconds until the next try is looked at


class Backend(ModelBackend):
    """Passwords are looked at SIGN_IN_RATE times for each address, also right ones, and BY_NAME times that for a name.

    By the address, because a guesser may try many names; by the name, because it may have many addresses. The name has
    a wider window, and what the address is refused for does not count there: nobody can shut others out from one
    address. It is left open when Valkey is away: nobody can sign in to mend things otherwise.
    """

    def authenticate(self, request: HttpRequest | None, **words: Any) -> User | None:  # type: ignore[override]
        """The words are Django's: `username` and `password`."""
        if request is not None and (seconds := seconds_to_wait(request, words.get("username") or "")):
            setattr(request, WAIT, seconds)
            log.warning("sign_in_refused", seconds=seconds)
            raise PermissionDenied  # ends Django's search: no other backend is asked
        return super().authenticate(request, **words)


def seconds_to_wait(request: HttpRequest, name: str) -> int:
    """Count a try, and return 0; or the seconds until one is looked at again."""
    who = sha256(name.casefold().encode()).hexdigest()  # names are personal, and as long as somebody likes
    by_address = rate("sign_in_rate")
    by_name = type(by_address)(by_address.amount * BY_NAME, by_address.multiples, namespace="sign_in_rate_of_a_name")
    return limiter().wait(by_address, f"from:{counted_as(request)}") or limiter().wait(by_name, f"as:{who}")


class SignInForm(AuthenticationForm):
    error_messages = {
        "invalid_login": "This name and password do not go together. Both are case-sensitive.",
        "inactive": "This account is switched off.",
    }

    def get_invalid_login_error(self) -> ValidationError:
        if seconds := getattr(self.request, WAIT, 0):
            return ValidationError(f"Too many tries. Wait {seconds} s before the next one.", code="rate_limited")
        return super().get_invalid_login_error()


class SignIn(LoginView):
    template_name = "config/sign_in.html"
    authentication_form = SignInForm

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        log.info("signed_in")
        return super().form_valid(form)

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        log.warning("sign_in_failed")
        return super().form_invalid(form)
