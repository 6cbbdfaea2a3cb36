from django.urls import path

from rules.api import views

urlpatterns = [
    path("api/v1/etl/rules", views.Rules.as_view()),
    path("api/v1/etl/rules/<int:rule_id>", views.OneRule.as_view()),
]
