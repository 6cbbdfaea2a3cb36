from django.urls import path

from rules.pages import actions, editor, listing, versions

urlpatterns = [
    path("app/rules", listing.Rules.as_view(), name="rules"),
    path("app/rules/new", editor.New.as_view(), name="new-rule"),
    path("app/rules/check", editor.Check.as_view(), name="check-rule"),
    path("app/rules/fields", editor.Fields.as_view(), name="rule-fields"),
    path("app/rules/<int:rule_id>", editor.OneRule.as_view(), name="rule"),
    path("app/rules/<int:rule_id>/delete", actions.Delete.as_view(), name="delete-rule"),
    path("app/rules/<int:rule_id>/versions", versions.Versions.as_view(), name="rule-versions"),
    path("app/rules/<int:rule_id>/versions/<int:version>", versions.Version.as_view(), name="rule-version"),
    path("app/rules/<int:rule_id>/versions/<int:version>/restore", actions.Restore.as_view(), name="restore-rule"),
]
