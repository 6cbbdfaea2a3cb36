"""Django settings of the provider, with the variables that `config.dev.stack.openid_provider` sets."""

import os
from pathlib import Path

FOLDER = Path(os.environ["PROVIDER_FOLDER"])
SECRET_KEY = CLIENT_SECRET = os.environ["CLIENT_SECRET"]
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "config.dev.openid_provider.urls"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "oauth2_provider",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": FOLDER / "provider.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # the passwords are public anyway
# A browser sends the cookies of a host to all of its ports.
SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "provider_session", "provider_csrf"
LOGIN_URL = "sign-in"
USE_TZ = True
SIGN_IN_PAGE = """<!doctype html><html lang="en"><title>Local provider</title>
<link rel="icon" href="data:,"><main><h1>Local provider</h1>
<form method="post">{% csrf_token %}{{ form.as_p }}<button>Sign in</button></form></main></html>"""
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "OPTIONS": {"loaders": [("django.template.loaders.locmem.Loader", {"sign_in.html": SIGN_IN_PAGE})]},
    }
]
OAUTH2_PROVIDER = {
    "OIDC_ENABLED": True,
    "OIDC_RSA_PRIVATE_KEY": (FOLDER / "key.pem").read_text(),
    "OIDC_ISS_ENDPOINT": os.environ["ISSUER"],
    "OAUTH2_VALIDATOR_CLASS": "config.dev.openid_provider.claims.Validator",
    "SCOPES": dict.fromkeys(("openid", "profile", "email", "groups", "offline_access"), "Claims about the user"),
}
