"""URLs of pages that belong to no app. Pages for signed-in users start with /app/."""

from django.contrib.auth.views import LogoutView
from django.urls import path
from django.views.generic import RedirectView

from config.platform.ui import account, home, sign_in

urlpatterns = [
    path("", home.Home.as_view(), name="home"),
    path("app", RedirectView.as_view(pattern_name="exports")),
    path("app/", RedirectView.as_view(pattern_name="exports")),
    path("app/sign-in", sign_in.SignIn.as_view(), name="sign-in"),
    path("app/sign-out", LogoutView.as_view(), name="sign-out"),
    path("app/account", account.Account.as_view(), name="account"),
    path("app/account/tokens/<uuid:token_id>/revoke", account.Revoke.as_view(), name="revoke-token"),
    path("app/account/password", account.Password.as_view(), name="password"),
]
