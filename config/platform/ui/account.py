"""The account page: API tokens and the password."""

from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.forms import PasswordChangeForm
from django.contrib.auth.models import User
from django.contrib.auth.views import PasswordChangeView
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import MD5
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse_lazy
from knox.models import AuthToken

from config.platform.db import clock
from config.platform.http.throttling import limiter, rate
from config.platform.ui.base import Action, Page

DAYS = {7: "7 days", 30: "30 days", 90: "90 days", 365: "1 year"}
MOST_TOKENS = 50


class TokenForm(forms.Form):
    once = forms.UUIDField(widget=forms.HiddenInput)
    days = forms.TypedChoiceField(
        label="Expires after",
        choices=list(DAYS.items()),
        initial=90,
        coerce=int,
        help_text="Requests with an expired token are refused.",
    )


ONCE = "form_of_the_newest_token"  # session key


class Account(Page):
    """The list of tokens. A new token is shown once, in the response to its POST.

    A redirect would have to store the token in the meantime. Instead, each form has an ID, and a reload that sends the
    form again creates nothing.
    """

    template_name = "config/account.html"
    title = "Account"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        now = clock.now()
        tokens = list(tokens_of(self.user.pk).order_by("-created")[:MOST_TOKENS])
        return super().get_context_data(
            form=context.pop("form", None) or TokenForm(initial={"once": uuid4()}),
            tokens=[{"token": token, "expired": bool(token.expiry and token.expiry <= now)} for token in tokens],
            **context,
        )

    def post(self, request: HttpRequest) -> HttpResponse:
        form, new_token = TokenForm(request.POST), ""
        if AuthToken.objects.filter(user=self.user).count() >= MOST_TOKENS:
            messages.error(request, f"You have {MOST_TOKENS} tokens, which is the limit. Revoke one to create another.")
        elif form.is_valid() and request.session.get(ONCE) == str(form.cleaned_data["once"]):
            messages.info(
                request, "This token was already created and is not shown again. Create another one if you lost it."
            )
        elif form.is_valid():
            request.session[ONCE] = str(form.cleaned_data["once"])
            token, new_token = AuthToken.objects.create(
                user=self.user, expiry=timedelta(days=form.cleaned_data["days"])
            )
            log_change(self.user, f"Created token {token.token_key[:8]}….")
        return self.render_to_response(self.get_context_data(form=form if form.errors else None, new_token=new_token))


class Revoke(Action):
    """Revoke a token. URLs contain a digest of its digest, because the digest itself is stored as the credential."""

    def act(self, *, handle: str) -> str:
        token = get_object_or_404(tokens_of(self.user.pk), handle=handle)
        token.delete()
        log_change(self.user, f"Revoked token {token.token_key[:8]}….")
        return f"Token {token.token_key[:8]}… revoked."

    def next_url(self, **_: Any) -> str:
        return "account"


def tokens_of(user_id: int) -> QuerySet[AuthToken]:
    tokens: QuerySet[AuthToken] = AuthToken.objects.filter(user_id=user_id).annotate(handle=MD5("digest"))
    return tokens


class PasswordForm(PasswordChangeForm):
    revokes = forms.BooleanField(
        label="Revoke all my API tokens",
        required=False,
        initial=True,
        help_text="Recommended if they may have been exposed.",
    )


class Password(PasswordChangeView):
    """Change the password. Requires the old one, rate-limited like the sign-in, because a session may be stolen."""

    template_name = "config/password.html"
    form_class = PasswordForm
    success_url = reverse_lazy("account")

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if seconds := limiter().wait(rate("sign_in_rate"), f"password:{request.user.pk}"):
            messages.error(request, f"Too many attempts. Try again in {seconds} s.")
            return redirect("password")
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: Any) -> HttpResponse:
        user = cast("User", self.request.user)
        with transaction.atomic():
            response = super().form_valid(form)
            message = "Password changed. Other browsers are signed out."
            if form.cleaned_data["revokes"]:
                tokens_of(user.pk).delete()
                message += " API tokens revoked."
            log_change(user, message)
        messages.success(self.request, message)
        return response


def log_change(user: User, message: str) -> None:
    """Log a change in the user's history in the admin."""
    LogEntry.objects.log_actions(user.pk, [user], CHANGE, change_message=message, single_object=True)
