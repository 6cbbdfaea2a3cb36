from django.urls import path

from rules.api import views

urlpatterns = [
    path("api/v1/etl/rules", views.RuleListView.as_view()),
    path("api/v1/etl/rules/<int:rule_id>", views.RuleView.as_view()),
]
