"""Signing in with a password, here and in the staff's pages, no more often than a person would."""

from hashlib import sha256
from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest

from config.api.addresses import client_address, network_around
from config.api.throttling import limiter, rate

WAIT = "sign_in_wait"  # on the request: seconds until the next try is looked at


class Backend(ModelBackend):
    """Passwords are looked at SIGN_IN_RATE times for each address and for each name, also right ones.

    By the name, because a guesser may have many addresses; by the address, because it may try many names. It is left
    open when Valkey is away: nobody can sign in to mend things otherwise.
    """

    def authenticate(self, request: HttpRequest | None, **words: Any) -> User | None:  # type: ignore[override]
        """The words are Django's: `username` and `password`."""
        if request is not None and (seconds := seconds_to_wait(request, words.get("username") or "")):
            setattr(request, WAIT, seconds)
            raise PermissionDenied  # ends Django's search: no other backend is asked
        return super().authenticate(request, **words)


def seconds_to_wait(request: HttpRequest, name: str) -> int:
    """Count a try, and return 0; or the seconds until one is looked at again."""
    address = client_address(request)
    around = network_around(address, ipv4=32, ipv6=64) if address else "unknown"
    who = sha256(name.casefold().encode()).hexdigest()  # names are personal, and as long as somebody likes
    return max(
        limiter().wait(rate("sign_in_rate"), f"{kind}:{value}") for kind, value in (("from", around), ("as", who))
    )


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
