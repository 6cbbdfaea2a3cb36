"""URLs of pages outside the apps. Pages for signed-in users start with /app/."""

from django.contrib.auth.views import LogoutView
from django.urls import path
from django.views.generic import RedirectView

from config.platform.ui import account, home, second_factors, sign_in

urlpatterns = [
    path("", home.Home.as_view(), name="home"),
    path("app", RedirectView.as_view(pattern_name="exports")),
    path("app/", RedirectView.as_view(pattern_name="exports")),
    path("app/sign-in", sign_in.SignIn.as_view(), name="sign-in"),
    path("app/sign-in/second-factor", second_factors.Step.as_view(), name="sign-in-second-factor"),
    path("app/sign-in/sso", sign_in.SingleSignOn.as_view(), name="single-sign-on"),
    path("app/sign-in/sso/callback", sign_in.Callback.as_view(), name="single-sign-on-callback"),
    path("app/sign-out", LogoutView.as_view(), name="sign-out"),
    path("app/account", account.Account.as_view(), name="account"),
    path("app/account/tokens/<uuid:token_id>/revoke", account.Revoke.as_view(), name="revoke-token"),
    path("app/account/password", account.Password.as_view(), name="password"),
    path("app/account/second-factors", second_factors.SecondFactors.as_view(), name="second-factors"),
    path("app/account/second-factors/confirm", second_factors.Confirm.as_view(), name="confirm-password"),
    path("app/account/second-factors/app", second_factors.AddApp.as_view(), name="add-authenticator-app"),
    path("app/account/second-factors/key", second_factors.AddKey.as_view(), name="add-security-key"),
    path("app/account/second-factors/codes", second_factors.Codes.as_view(), name="recovery-codes"),
    path(
        "app/account/second-factors/<int:factor_id>/remove",
        second_factors.Remove.as_view(),
        name="remove-second-factor",
    ),
    path("admin/password_change/", RedirectView.as_view(pattern_name="password")),  # this page limits the attempts
    path("admin/login/", sign_in.AdminSignIn.as_view()),  # replaces the admin's page, which has no second factor
]
