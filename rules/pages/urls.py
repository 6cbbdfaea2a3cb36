from django.urls import path

from rules.pages import actions, editor, listing, versions

urlpatterns = [
    path("app/rules", listing.RuleListPage.as_view(), name="rules"),
    path("app/rules/new", editor.NewRulePage.as_view(), name="new-rule"),
    path("app/rules/check", editor.CheckPage.as_view(), name="check-rule"),
    path("app/rules/fields", editor.FieldsPage.as_view(), name="rule-fields"),
    path("app/rules/<int:rule_id>", editor.RulePage.as_view(), name="rule"),
    path("app/rules/<int:rule_id>/delete", actions.Delete.as_view(), name="delete-rule"),
    path("app/rules/<int:rule_id>/versions", versions.VersionListPage.as_view(), name="rule-versions"),
    path("app/rules/<int:rule_id>/versions/<int:version>", versions.VersionPage.as_view(), name="rule-version"),
    path("app/rules/<int:rule_id>/versions/<int:version>/restore", actions.Restore.as_view(), name="restore-rule"),
]
