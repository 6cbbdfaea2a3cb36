"""Sign-in for pages and the admin: by password and second factor, or by single sign-on."""

import time
from hashlib import sha256
from typing import Any

import structlog
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_login_failed
from django.contrib.auth.views import LoginView
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import redirect, resolve_url
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.generic import RedirectView, View

from config.platform.http import second_factor, single_sign_on
from config.platform.http.addresses import rate_limit_key
from config.platform.http.audit import NOTHING
from config.platform.http.error_handling import respond_page
from config.platform.http.problems import Problem
from config.platform.http.throttling import limiter, rate
from config.platform.models import Identity
from config.platform.ui.base import redirect_page, too_many_attempts
from config.platform.ui.sign_in_records import WAIT

log = structlog.get_logger(__name__)

NAME_RATE_FACTOR = 30  # the rate limit per username, as a multiple of the limit per address
# Keys of the session
PENDING = "sign_in_pending"  # a correct password that waits for the second factor
CONFIRMED = "password_confirmed_at"  # Unix time
NEXT = "sign_in_next"
STATES = "_state_oidc_"  # prefix of the keys of Authlib, one for each started sign-in; it has no public name
PENDING_SECONDS, PENDING_ATTEMPTS = 300, 5
MAX_NEXT = 2_000  # characters
# Paths that users without a required second factor can open.
BEFORE_SETUP = ("/app/sign-in", "/app/sign-out", "/app/account/second-factors", "/admin/login/", "/admin/logout/")


class Backend(ModelBackend):
    """Password check with rate limits: SIGN_IN_RATE per address, NAME_RATE_FACTOR times that per username.

    Correct passwords count too. The limit per address stops guesses of many usernames; the limit per username stops
    guesses from many addresses. Attempts that the address limit refuses do not count for the username, so that one
    address cannot lock users out. Without Valkey the limits are off, so that staff can still sign in to fix it.
    """

    def authenticate(self, request: HttpRequest | None, **credentials: Any) -> User | None:  # type: ignore[override]
        """Check the rate limits, then the credentials: `username` and `password`."""
        if request is not None and (seconds := seconds_to_wait(request, credentials.get("username") or "")):
            setattr(request, WAIT, seconds)
            log.warning("sign_in_refused", seconds=seconds)
            raise PermissionDenied  # stops Django from trying other backends
        user = super().authenticate(request, **credentials)
        # A local password must not bypass the identity provider.
        return None if user and Identity.objects.filter(pk=user.pk).exists() else user

    def get_user(self, user_id: int) -> User | None:
        """Return the user of a session, if the user is active. Raises ProviderUnavailable."""
        user = single_sign_on.users().filter(pk=user_id).first()
        return user if user and single_sign_on.is_current(user) else None


def seconds_to_wait(request: HttpRequest, name: str) -> int:
    """Count an attempt and return 0, or return the seconds until the next one is allowed."""
    name_hash = sha256(name.casefold().encode()).hexdigest()  # usernames are personal data of any length
    by_address = rate("sign_in_rate")
    by_name = type(by_address)(
        by_address.amount * NAME_RATE_FACTOR, by_address.multiples, namespace="sign_in_rate_of_a_name"
    )
    return limiter().wait(by_address, f"from:{rate_limit_key(request)}") or limiter().wait(by_name, f"as:{name_hash}")


class SignInForm(AuthenticationForm):
    error_messages = {
        "invalid_login": "Incorrect username or password. Both are case-sensitive.",
        "inactive": "This account is disabled.",
    }

    def get_invalid_login_error(self) -> ValidationError:
        if seconds := getattr(self.request, WAIT, 0):
            return ValidationError(too_many_attempts(seconds), code="rate_limited")
        return super().get_invalid_login_error()


class SignIn(LoginView):
    """The page with the password form. With single sign-on, local accounts still use it."""

    audited = NOTHING
    template_name = "config/sign_in.html"
    authentication_form = SignInForm

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(single_sign_on=single_sign_on.is_on(), **context)

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        user = form.get_user()
        if second_factor.is_enabled(user):
            self.request.session[PENDING] = {
                "user": user.pk,
                "hash": user.get_session_auth_hash(),
                "next": self.get_success_url(),
                "until": time.time() + PENDING_SECONDS,
                "attempts": 0,
            }
            return redirect("sign-in-second-factor")
        log.info("signed_in")
        response = super().form_valid(form)
        self.request.session[CONFIRMED] = time.time()
        return response

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        log.warning("sign_in_failed")
        return super().form_invalid(form)


def pending_user(request: HttpRequest) -> User | None:
    """Return the user whose password was correct in this session.

    Return None after PENDING_SECONDS or PENDING_ATTEMPTS, or if the account or its password has changed since.
    """
    pending = request.session.get(PENDING)
    if not pending or pending["until"] < time.time() or pending["attempts"] >= PENDING_ATTEMPTS:
        request.session.pop(PENDING, None)
        return None
    user = User.objects.filter(pk=pending["user"], is_active=True).first()
    return user if user and user.get_session_auth_hash() == pending["hash"] else None


def complete(request: HttpRequest, user: User) -> HttpResponse:
    """Sign the user in after the second factor."""
    next_url = request.session.pop(PENDING)["next"]
    login(request, user, backend=settings.AUTHENTICATION_BACKENDS[0])
    request.session[second_factor.VERIFIED] = True
    request.session[CONFIRMED] = time.time()
    log.info("signed_in")
    return HttpResponseRedirect(next_url)  # not `redirect`, which looks for a view with this name first


class Authentication(AuthenticationMiddleware):
    """Django's middleware, which also redirects users without a required second factor to the setup page."""

    def process_request(self, request: HttpRequest) -> HttpResponse | None:  # type: ignore[override]
        super().process_request(request)
        path = request.path_info
        if (
            settings.SLUICE.require_mfa == "off"
            or not path.startswith(settings.PAGE_PREFIXES)
            or path.startswith(BEFORE_SETUP)
        ):
            return None
        try:
            is_missing = request.user.is_authenticated and second_factor.is_missing(request)
        except Problem as problem:
            return respond_page(problem, request)
        return redirect_page(request, reverse("second-factors")) if is_missing else None


class AdminSignIn(RedirectView):
    """A redirect from the admin's sign-in page to the common one."""

    audited = NOTHING
    pattern_name = "sign-in"
    query_string = True


# ---- Single sign-on -------------------------------------------------------------------------------------------------


class ProviderView(View):
    """A step of single sign-on, rate-limited because it creates a session and sends requests to the provider."""

    audited = NOTHING
    step: str

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not single_sign_on.is_on():
            return redirect("sign-in")
        if seconds := limiter().wait(rate("sign_in_rate"), f"{self.step}:{rate_limit_key(request)}"):
            return refuse(request, too_many_attempts(seconds))
        return super().dispatch(request, *args, **kwargs)


class SingleSignOn(ProviderView):
    """Redirect to the identity provider. `next` is the page to return to."""

    step = "sso"

    def get(self, request: HttpRequest) -> HttpResponse:
        for name in [name for name in request.session.keys() if name.startswith(STATES)]:  # noqa: SIM118 - a session is not a dictionary
            del request.session[name]
        next_url = request.GET.get("next", "")
        request.session[NEXT] = next_url if len(next_url) <= MAX_NEXT else ""
        try:
            return single_sign_on.begin(request, request.build_absolute_uri(reverse("single-sign-on-callback")))
        except single_sign_on.SignInRefused as refused:
            return refuse(request, str(refused))


class Callback(ProviderView):
    """The page to which the identity provider redirects the user back."""

    step = "sso-callback"

    def get(self, request: HttpRequest) -> HttpResponse:
        next_url = request.session.pop(NEXT, "")
        try:
            user = single_sign_on.finish(request)
        except single_sign_on.SignInRefused as refused:
            user_login_failed.send(__name__, credentials={}, request=request)
            return refuse(request, str(refused))
        login(request, user, backend=settings.AUTHENTICATION_BACKENDS[0])
        request.session[second_factor.SINGLE_SIGN_ON] = True
        log.info("signed_in")
        is_safe = url_has_allowed_host_and_scheme(next_url, {request.get_host()}, require_https=request.is_secure())
        return HttpResponseRedirect(next_url if is_safe else resolve_url(settings.LOGIN_REDIRECT_URL))


def refuse(request: HttpRequest, reason: str) -> HttpResponse:
    messages.error(request, reason)
    return redirect("sign-in")
