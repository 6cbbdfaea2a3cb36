"""My account: tokens for programs, and the password."""

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
from django.utils import timezone
from knox.models import AuthToken

from config.platform.http.throttling import limiter, rate
from config.platform.ui.base import Action, Page

DAYS = {7: "a week", 30: "30 days", 90: "90 days", 365: "a year"}
MOST_TOKENS = 50


class TokenForm(forms.Form):
    once = forms.UUIDField(widget=forms.HiddenInput)
    days = forms.TypedChoiceField(
        label="Works for", choices=list(DAYS.items()), initial=90, coerce=int, help_text="After that it is refused."
    )


ONCE = "form_of_the_newest_token"  # in the session


class Account(Page):
    """Tokens: a new one is shown once, in the answer to the POST that makes it.

    A redirect would have to keep it somewhere meanwhile. So each form has a number, and one that is sent again by a
    reload makes nothing.
    """

    template_name = "config/account.html"
    title = "Account"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        now = timezone.now()
        tokens = list(tokens_of(self.user.pk).order_by("-created")[:MOST_TOKENS])
        return super().get_context_data(
            form=context.pop("form", None) or TokenForm(initial={"once": uuid4()}),
            tokens=[{"token": token, "expired": bool(token.expiry and token.expiry <= now)} for token in tokens],
            **context,
        )

    def post(self, request: HttpRequest) -> HttpResponse:
        form, made = TokenForm(request.POST), ""
        if AuthToken.objects.filter(user=self.user).count() >= MOST_TOKENS:
            messages.error(request, f"You have {MOST_TOKENS} tokens. Revoke one that is not used any more.")
        elif form.is_valid() and request.session.get(ONCE) == str(form.cleaned_data["once"]):
            messages.info(request, "That token was made already, and is not shown again. Make another if you lost it.")
        elif form.is_valid():
            request.session[ONCE] = str(form.cleaned_data["once"])
            token, made = AuthToken.objects.create(user=self.user, expiry=timedelta(days=form.cleaned_data["days"]))
            note(self.user, f"Made the token {token.token_key[:8]}….")
        return self.render_to_response(self.get_context_data(form=form if form.errors else None, made=made))


class Revoke(Action):
    """A token goes by a digest of its digest: the digest itself is what the database compares with."""

    def act(self, *, handle: str) -> str:
        token = get_object_or_404(tokens_of(self.user.pk), handle=handle)
        token.delete()
        note(self.user, f"Revoked the token {token.token_key[:8]}….")
        return f"The token {token.token_key[:8]}… is revoked: requests with it are refused from now on."

    def then(self, **_: Any) -> str:
        return "account"


def tokens_of(user_id: int) -> QuerySet[AuthToken]:
    tokens: QuerySet[AuthToken] = AuthToken.objects.filter(user_id=user_id).annotate(handle=MD5("digest"))
    return tokens


class PasswordForm(PasswordChangeForm):
    revokes = forms.BooleanField(
        label="Revoke my tokens too", required=False, initial=True, help_text="For when somebody else may know them."
    )


class Password(PasswordChangeView):
    """The old one is asked for, and looked at as often as at the sign-in: a session may be somebody else's."""

    template_name = "config/password.html"
    form_class = PasswordForm
    success_url = reverse_lazy("account")

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if seconds := limiter().wait(rate("sign_in_rate"), f"password:{request.user.pk}"):
            messages.error(request, f"Too many tries. Wait {seconds} s before the next one.")
            return redirect("password")
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: Any) -> HttpResponse:
        user = cast("User", self.request.user)
        with transaction.atomic():
            response = super().form_valid(form)
            said = "Your password is changed. Other browsers are signed out."
            if form.cleaned_data["revokes"]:
                tokens_of(user.pk).delete()
                said += " Your tokens are revoked."
            note(user, said)
        messages.success(self.request, said)
        return response


def note(user: User, said: str) -> None:
    """Put it into the user's history, where the staff see it."""
    LogEntry.objects.log_actions(user.pk, [user], CHANGE, change_message=said, single_object=True)
