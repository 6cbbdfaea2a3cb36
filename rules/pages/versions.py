"""Pages of the versions of a rule, and the comparison of two versions."""

from typing import Any

from django.http import HttpRequest

from config.platform.http.audit import CHANGES
from config.platform.http.paging import whole_number
from config.platform.ui.base import Listing
from rules.library import access, requirements
from rules.models import Rule
from rules.pages import comparison, explanations, forms
from rules.pages.base import RulesPage


class VersionListPage(RulesPage):
    """The list of versions, newest first, and the comparison of the versions `?old=` and `?new=`."""

    audited = CHANGES
    template_name = "rules/versions.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        rule = access.visible(self.user, self.kwargs["rule_id"])
        listing = Listing(
            self.request, rule.versions.defer("json_schema", "system_prompt"), ordering=("-version", "-pk")
        )
        old, new = compared_versions(self.request, rule)
        parts = None
        if old and new:
            parts = comparison.compare(*(forms.editor_texts(access.version_of(rule, each)) for each in (old, new)))
        return super().get_context_data(
            rule=rule, listing=listing, rows=listing.rows, old=old, new=new, parts=parts,
            is_changeable=access.is_changeable(self.user, rule), title=f"Versions of {rule.name}", **context,
        )  # fmt: skip


def compared_versions(request: HttpRequest, rule: Rule) -> tuple[int, int]:
    """Return the two versions to compare: the requested ones, or else the newest two."""
    old, new = (whole_number(request.GET.get(name, "")) for name in ("old", "new"))
    return (old, new) if old and new else (rule.version - 1, rule.version)


class VersionPage(RulesPage):
    """Read-only page of a version."""

    audited = CHANGES
    template_name = "rules/version.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        rule = access.visible(self.user, self.kwargs["rule_id"])
        version = access.version_of(rule, self.kwargs["version"])
        return super().get_context_data(
            rule=rule, rule_version=version, is_changeable=access.is_changeable(self.user, rule),
            texts=forms.editor_texts(version), mode_label=explanations.mode(version.postprocess_mode),
            strategy_label=explanations.strategy(version.postprocess_strategy),
            lacks_model=requirements.lacks_model(version.postprocess_mode),
            title=f"{version.name}, version {version.version}", **context,
        )  # fmt: skip
