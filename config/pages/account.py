"""My account: tokens for programs, and the password."""

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.views import PasswordChangeView
from django.db.models import QuerySet
from django.db.models.functions import MD5
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse_lazy
from django.utils import timezone
from knox.models import AuthToken

from config.pages.base import Action, Page

DAYS = {7: "a week", 30: "30 days", 90: "90 days", 365: "a year"}
MOST_TOKENS = 50


class TokenForm(forms.Form):
    days = forms.TypedChoiceField(
        label="Works for", choices=list(DAYS.items()), initial=90, coerce=int, help_text="After that it is refused."
    )


class Account(Page):
    """Tokens: a new one is shown once, in the answer to the POST that makes it."""

    template_name = "config/account.html"
    title = "Account"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        now = timezone.now()
        tokens = list(tokens_of(self.user.pk).order_by("-created")[:MOST_TOKENS])
        return super().get_context_data(
            form=context.pop("form", None) or TokenForm(),
            tokens=[{"token": token, "expired": bool(token.expiry and token.expiry <= now)} for token in tokens],
            **context,
        )

    def post(self, request: HttpRequest) -> HttpResponse:
        form, made = TokenForm(request.POST), ""
        if AuthToken.objects.filter(user=self.user).count() >= MOST_TOKENS:
            messages.error(request, f"You have {MOST_TOKENS} tokens. Revoke one that is not used any more.")
        elif form.is_valid():
            _, made = AuthToken.objects.create(user=self.user, expiry=timedelta(days=form.cleaned_data["days"]))
        return self.render_to_response(self.get_context_data(form=form if form.errors else None, made=made))


class Revoke(Action):
    """A token goes by a digest of its digest: the digest itself is what the database compares with."""

    def act(self, *, handle: str) -> str:
        token = get_object_or_404(tokens_of(self.user.pk), handle=handle)
        token.delete()
        return f"The token {token.token_key[:8]}… is revoked: requests with it are refused from now on."

    def then(self, **_: Any) -> str:
        return "account"


def tokens_of(user_id: int) -> QuerySet[AuthToken]:
    tokens: QuerySet[AuthToken] = AuthToken.objects.filter(user_id=user_id).annotate(handle=MD5("digest"))
    return tokens


class Password(PasswordChangeView):
    template_name = "config/password.html"
    success_url = reverse_lazy("account")

    def form_valid(self, form: Any) -> HttpResponse:
        messages.success(self.request, "Your password is changed. Other browsers are signed out.")
        return super().form_valid(form)
