from django.urls import include, path

from tests.bench.status_quo.views import Flights

urlpatterns = [path("flights", Flights.as_view()), path("", include("config.urls"))]
