"""A local OpenID provider to try and to test single sign-on: django-oauth-toolkit, as a Django project of its own."""
