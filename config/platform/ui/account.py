"""The account page: API tokens and the password."""

from typing import Any, cast
from uuid import UUID, uuid4

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.contrib.auth.views import PasswordChangeView
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse_lazy

from config.platform.db import clock
from config.platform.http import scopes, tokens
from config.platform.http.audit import CHANGES
from config.platform.http.problems import Problem
from config.platform.http.throttling import limiter, rate
from config.platform.ui.base import Action, Page, problem_text, too_many_attempts

DAYS = {7: "7 days", 30: "30 days", 90: "90 days", 365: "1 year"}
SCOPES = {
    "exports:read": "Exports: read and download",
    "exports:write": "Exports: create and change",
    "documents:read": "Documents: read",
    "documents:write": "Documents: submit and change",
    "rules:write": "Rules: change",
    "webhooks:write": "Webhooks: change",
}


class TokenForm(forms.Form):
    once = forms.UUIDField(widget=forms.HiddenInput)
    name = forms.CharField(max_length=tokens.MAX_NAME, help_text="What the token is for.")
    days = forms.TypedChoiceField(
        label="Expires after",
        choices=list(DAYS.items()),
        initial=90,
        coerce=int,
        help_text="Requests with an expired token are refused.",
    )
    scopes = forms.MultipleChoiceField(
        label="Permits",
        choices=list(SCOPES.items()),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="Change access does not include read access. If you select none, the token has all your permissions.",
    )


ONCE = "form_of_the_newest_token"  # session key


class Account(Page):
    """The list of tokens. A new token is shown once, in the response to its POST.

    A redirect would have to store the token until the next request. Instead, each form has an ID, and a reload that
    sends the form again creates no token.
    """

    audited = CHANGES
    template_name = "config/account.html"
    title = "Account"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        now = clock.now()
        rows = [
            {
                **tokens.represent(token),
                "limits": scopes.of_token(token),
                "expired": bool(token.expiry and token.expiry <= now),
            }
            for token in tokens.of_user(self.user.pk)
        ]
        return super().get_context_data(
            form=context.pop("form", None) or TokenForm(initial={"once": uuid4()}),
            tokens=rows,
            **context,
        )

    def post(self, request: HttpRequest) -> HttpResponse:
        form, new_token = TokenForm(request.POST), ""
        if form.is_valid() and request.session.get(ONCE) == str(form.cleaned_data["once"]):
            messages.info(
                request, "This token was already created and is not shown again. Create another one if you lost it."
            )
        elif form.is_valid() and (seconds := limiter().wait(rate("export_rate"), str(self.user.pk))):
            messages.error(request, too_many_attempts(seconds))  # like `POST /tokens`
        elif form.is_valid():
            values = form.cleaned_data
            try:
                _, new_token = tokens.create(
                    self.user, name=values["name"], scopes=values["scopes"], days=values["days"]
                )
                request.session[ONCE] = str(values["once"])
            except Problem as problem:
                messages.error(request, problem_text(problem))
        return self.render_to_response(self.get_context_data(form=form if form.errors else None, new_token=new_token))


class Revoke(Action):
    def act(self, *, token_id: UUID) -> str:
        return f"Token {tokens.label(tokens.revoke(self.user, token_id))} revoked."

    def next_url(self, **_: Any) -> str:
        return "account"


class Password(PasswordChangeView):
    """Change of the password. Requires the old one, because a session may be stolen. Rate-limited like the sign-in."""

    audited = CHANGES
    template_name = "config/password.html"
    success_url = reverse_lazy("account")

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if seconds := limiter().wait(rate("sign_in_rate"), f"password:{request.user.pk}"):
            messages.error(request, too_many_attempts(seconds))
            return redirect("password")
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: Any) -> HttpResponse:
        message = "Password changed. Other browsers are signed out, and API tokens are revoked."
        with transaction.atomic():
            response = super().form_valid(form)
            tokens.record(cast("User", self.request.user), message)
        messages.success(self.request, message)
        return response
