"""Local OpenID provider for trying and testing single sign-on: django-oauth-toolkit as a separate Django project."""
