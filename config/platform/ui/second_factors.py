"""Pages of second factors: the second step of a sign-in, and the management of the user's factors."""

import json
import time
from typing import Any, cast

import limits
import segno
from django import forms
from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.auth.models import User
from django.contrib.auth.signals import user_login_failed
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.views.generic import FormView

from config.platform.http import second_factor
from config.platform.http.audit import CHANGES, NOTHING
from config.platform.http.problems import Problem, require_first
from config.platform.http.throttling import limiter, rate
from config.platform.models import Identity
from config.platform.ui import sign_in
from config.platform.ui.base import Action, Page, problem_text, too_many_attempts

CONFIRMED_FOR = 600  # seconds
# Attempts with codes of an authenticator app. Without this limit, a code could be guessed within weeks. Security keys
# and recovery codes still work after it is reached.
CODES_PER_DAY = limits.RateLimitItemPerDay(50, namespace="codes_of_a_user")
# Keys of the session
NEW_SECRET = "new_authenticator_app"
KEY_STATE = "security_key"


class CodeForm(forms.Form):
    code = forms.CharField(
        max_length=40,
        label="Code",
        help_text="The 6 digits of your authenticator app, or a recovery code.",
        widget=forms.TextInput({"autocomplete": "one-time-code", "autocapitalize": "characters", "autofocus": True}),
    )


class KeyForm(forms.Form):
    credential = forms.CharField(widget=forms.HiddenInput)

    def clean_credential(self) -> Any:
        try:
            return json.loads(self.cleaned_data["credential"])
        except (ValueError, RecursionError):  # Django's JSONField fails for huge numbers and deep nesting
            raise forms.ValidationError("Not JSON.") from None


class NewAppForm(forms.Form):
    name = forms.CharField(max_length=100, initial="Authenticator app", help_text="For example: Work phone.")
    code = forms.CharField(
        max_length=10,
        help_text="The 6 digits that the app shows.",
        widget=forms.TextInput({"autocomplete": "one-time-code", "inputmode": "numeric"}),
    )

    def clean_code(self) -> str:
        return "".join(str(self.cleaned_data["code"]).split())


class NewKeyForm(KeyForm):
    name = forms.CharField(max_length=100, initial="Security key", help_text="For example: Blue key.")


class PasswordForm(forms.Form):
    password = forms.CharField(widget=forms.PasswordInput({"autocomplete": "current-password", "autofocus": True}))


# ---- Sign-in --------------------------------------------------------------------------------------------------------


class Step(FormView):
    """The second step of a sign-in: a code, or a security key."""

    audited = NOTHING
    template_name = "config/second_factor.html"
    form_class = CodeForm

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        user = sign_in.pending_user(request)
        if user is None:
            messages.info(request, "Sign in again.")
            return redirect("sign-in")
        self.user = user
        return super().dispatch(request, *args, **kwargs)

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        found = second_factor.request_options(self.request, self.user)
        if found:
            self.request.session[KEY_STATE] = found[1]
        return super().get_context_data(options=found and found[0], key_form=KeyForm(), **context)

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if seconds := limiter().wait(rate("sign_in_rate"), f"second-factor:{self.user.pk}"):
            return self.refuse(request, seconds)
        is_app_code = second_factor.is_app_code(request.POST.get("code", ""))
        if is_app_code and (seconds := limiter().wait(CODES_PER_DAY, str(self.user.pk))):
            return self.refuse(request, seconds)
        request.session[sign_in.PENDING]["attempts"] += 1
        request.session.modified = True
        if self.is_correct(request):
            return sign_in.complete(request, self.user)
        sign_in.log.warning("second_factor_failed")
        user_login_failed.send(__name__, credentials={"username": self.user.get_username()}, request=request)
        messages.error(request, "Incorrect code or security key. Each code works only once.")
        return redirect("sign-in-second-factor")

    def refuse(self, request: HttpRequest, seconds: int) -> HttpResponse:
        messages.error(request, too_many_attempts(seconds))
        return redirect("sign-in-second-factor")

    def is_correct(self, request: HttpRequest) -> bool:
        key, code = KeyForm(request.POST), CodeForm(request.POST)
        if key.is_valid():
            state = request.session.pop(KEY_STATE, None)
            return state is not None and second_factor.use_key(
                request, self.user, state, key.cleaned_data["credential"]
            )
        return code.is_valid() and second_factor.use_code(self.user, code.cleaned_data["code"])


# ---- The user's own factors -----------------------------------------------------------------------------------------


class PasswordConfirmedPage(Page):
    """A page for local users, who must enter their password every CONFIRMED_FOR seconds: the session may be stolen."""

    audited = CHANGES

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return self.handle_no_permission()
        if Identity.objects.filter(user_id=request.user.pk).exists():
            return redirect("second-factors")
        if predates_second_factor(request):
            return sign_in_again(request)
        if not is_confirmed(request):
            # A page without GET cannot be opened by the redirect after the confirmation.
            next_url = request.path if "get" in self.http_method_names else reverse("second-factors")
            return redirect(f"{reverse('confirm-password')}?{urlencode({'next': next_url})}")
        return super().dispatch(request, *args, **kwargs)

    def respond_after_adding(self, request: HttpRequest) -> HttpResponse:
        """Show new recovery codes after the first factor, and the list of factors after further ones."""
        request.session[second_factor.VERIFIED] = True
        if self.user.recovery_codes.exists():
            messages.success(request, "Second factor added.")
            return redirect("second-factors")
        return show_codes(self)


def predates_second_factor(request: HttpRequest) -> bool:
    """Return whether the session was opened without the second factor that the user has now. It may be stolen."""
    return second_factor.is_enabled(cast("User", request.user)) and not request.session.get(second_factor.VERIFIED)


def sign_in_again(request: HttpRequest) -> HttpResponse:
    logout(request)
    messages.info(request, "Sign in again, with your second factor.")
    return redirect("sign-in")


def is_confirmed(request: HttpRequest) -> bool:
    return bool(time.time() - request.session.get(sign_in.CONFIRMED, 0) < CONFIRMED_FOR)


def show_codes(page: Page) -> HttpResponse:
    page.template_name = "config/recovery_codes.html"
    page.title = "Recovery codes"
    codes = second_factor.replace_recovery_codes(page.user)
    return page.render_to_response(page.get_context_data(codes=codes))


class SecondFactors(Page):
    audited = NOTHING
    template_name = "config/second_factors.html"
    title = "Second factors"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(
            is_external=Identity.objects.filter(user_id=self.user.pk).exists(),
            is_missing=second_factor.is_missing(self.request),
            factors=self.user.second_factors.order_by("pk"),
            codes=self.user.recovery_codes.count(),
            **context,
        )


class Confirm(Page):
    """Confirmation of the password, rate-limited like the sign-in."""

    audited = CHANGES
    template_name = "config/confirm_password.html"
    title = "Confirm your password"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(**{"form": PasswordForm(), "next": self.request.GET.get("next", ""), **context})

    def post(self, request: HttpRequest) -> HttpResponse:
        form, next_url = PasswordForm(request.POST), request.POST.get("next", "")
        if seconds := limiter().wait(rate("sign_in_rate"), f"password:{self.user.pk}"):
            form.add_error(None, too_many_attempts(seconds))
        elif form.is_valid() and self.user.check_password(form.cleaned_data["password"]):
            request.session[sign_in.CONFIRMED] = time.time()
            is_safe = url_has_allowed_host_and_scheme(next_url, {request.get_host()}, require_https=request.is_secure())
            return HttpResponseRedirect(next_url if is_safe else reverse("second-factors"))
        else:
            form.add_error(None, "Incorrect password.")
        return self.render_to_response(self.get_context_data(form=form, next=next_url))


class AddApp(PasswordConfirmedPage):
    """Registration of an authenticator app. The secret stays in the session until a code proves that the app has it."""

    template_name = "config/add_app.html"
    title = "Add an authenticator app"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        if "codes" in context:
            return super().get_context_data(**context)
        secret = self.request.session.setdefault(NEW_SECRET, second_factor.new_secret())
        image = segno.make(second_factor.provisioning_uri(self.user, secret), error="m").svg_data_uri(
            scale=5, border=4, light="white"
        )
        return super().get_context_data(**{"form": NewAppForm(), "image": image, "secret": secret, **context})

    def post(self, request: HttpRequest) -> HttpResponse:
        form, secret = NewAppForm(request.POST), request.session.get(NEW_SECRET)
        if not secret:
            form.add_error(None, "This page has expired. Scan the new image, and enter its code.")
        elif form.is_valid():
            try:
                if second_factor.add_app(self.user, secret, form.cleaned_data["code"], form.cleaned_data["name"]):
                    del request.session[NEW_SECRET]
                    return self.respond_after_adding(request)
                form.add_error("code", "Incorrect code. Check the clock of the device.")
            except Problem as problem:
                form.add_error(None, problem_text(problem))
        return self.render_to_response(self.get_context_data(form=form))


class AddKey(PasswordConfirmedPage):
    """Registration of a security key, or a passkey of the device. Needs JavaScript."""

    template_name = "config/add_key.html"
    title = "Add a security key"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        if "codes" in context:
            return super().get_context_data(**context)
        options, state = second_factor.creation_options(self.request, self.user)
        self.request.session[KEY_STATE] = state
        return super().get_context_data(**{"form": NewKeyForm(), "options": options, **context})

    def post(self, request: HttpRequest) -> HttpResponse:
        form, state = NewKeyForm(request.POST), request.session.pop(KEY_STATE, None)
        if not state:
            form.add_error(None, "This page has expired. Try again.")
        elif form.is_valid():
            values = form.cleaned_data
            try:
                if second_factor.add_key(request, self.user, state, values["credential"], values["name"]):
                    return self.respond_after_adding(request)
                form.add_error(None, "The response of the security key is invalid. Try again.")
            except Problem as problem:
                form.add_error(None, problem_text(problem))
        return self.render_to_response(self.get_context_data(form=form))


class Codes(PasswordConfirmedPage):
    """Replacement of the recovery codes, which are shown once."""

    http_method_names = ("post",)

    def post(self, request: HttpRequest) -> HttpResponse:
        if not second_factor.is_enabled(self.user):
            messages.error(request, "Recovery codes need a second factor. Add one first.")
            return redirect("second-factors")
        return show_codes(self)


class Remove(Action):
    """Removal of a second factor. The last one cannot be removed while the user must have one."""

    audited = CHANGES

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        require_first(self.user.second_factors.filter(pk=kwargs["factor_id"]), second_factor.NoSuchFactor)
        if predates_second_factor(request):
            return sign_in_again(request)
        if not is_confirmed(request):
            return redirect(f"{reverse('confirm-password')}?{urlencode({'next': reverse('second-factors')})}")
        return super().post(request, **kwargs)

    def act(self, *, factor_id: int) -> str:
        return f"{second_factor.remove(self.user, factor_id).name} removed."

    def next_url(self, **_: Any) -> str:
        return "second-factors"
