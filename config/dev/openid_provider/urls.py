from django.contrib.auth.views import LoginView
from django.urls import include, path

urlpatterns = [
    path("sign-in", LoginView.as_view(template_name="sign_in.html"), name="sign-in"),
    path("", include("oauth2_provider.urls")),
]
