"""Pages of the rule editor: view and create rules, validate while typing, and save a new version.

Every error response contains the typed text, so that the user never loses work.
"""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from config.platform.http.audit import CHANGES, NOTHING
from config.platform.http.paging import whole_number
from config.platform.http.problems import Problem
from config.platform.ui.base import problem_text, redirect_page
from rules.library import access, catalog, editing, requirements
from rules.models import Rule
from rules.pages import comparison, explanations, fields, forms
from rules.pages.base import RulesPage
from rules.pages.forms import SCHEMA, RuleForm


class Editor(RulesPage):
    """Base of pages with the editor's form."""

    audited = CHANGES
    template_name = "rules/editor.html"
    fragment_name = "rules/_form.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        form: RuleForm = context["form"]
        rule: Rule | None = context.get("rule")
        is_view_only = bool(rule) and not context.get("is_changeable") and not context.get("deleted_rule")
        return super().get_context_data(
            title=f"Rule {rule.pk}: {rule.name}" if rule else "New rule",
            field_types=explanations.field_types(), has_model=requirements.has_model(),
            modes=explanations.modes(), strategies=explanations.strategies(),
            typed={name: form.typed(name) for name in editing.FIELDS},
            mode_label=explanations.mode(form.typed("postprocess_mode")),
            strategy_label=explanations.strategy(form.typed("postprocess_strategy")),
            lacks_model=requirements.lacks_model(form.typed("postprocess_mode")), is_view_only=is_view_only,
            **context,
        )  # fmt: skip

    def show(self, **context: Any) -> HttpResponse:
        return self.render_to_response(self.get_context_data(**context))

    def rule_context(self, rule: Rule) -> dict[str, Any]:
        default = catalog.default()
        return {
            "is_changeable": access.is_changeable(self.user, rule),
            "is_system": catalog.is_system(rule),
            "is_default": default is not None and default.pk == rule.pk,
        }

    def redirect_to(self, rule: Rule, message: str) -> HttpResponse:
        messages.success(self.request, message)
        return redirect_page(self.request, reverse("rule", args=[rule.pk]))


class NewRulePage(Editor):
    """The editor of a new rule. `?from=` is the ID of a rule to copy."""

    def get(self, request: HttpRequest) -> HttpResponse:
        self.count()
        source = whole_number(request.GET.get("from", ""))
        form = forms.copy_of(access.visible(self.user, source)) if source else forms.empty()
        form.read()
        form.hide_missing_name()
        return self.show(form=form, samples=catalog.visible_to(self.user).filter(owner=None).order_by("name"))

    def post(self, request: HttpRequest) -> HttpResponse:
        form = RuleForm(request.POST)
        try:
            self.count()
            if (values := form.read()) is None:
                return self.show(form=form)
            rule = editing.create(owner=self.user, values=values)
        except Problem as problem:
            return self.show(form=form, save_error=problem_text(problem))
        return self.redirect_to(rule, f"Rule “{rule.name}” created. You can submit documents with it now.")


class RulePage(Editor):
    """The page of a rule: the editor if the user may change the rule, or else a read-only view."""

    def get(self, request: HttpRequest, rule_id: int) -> HttpResponse:
        self.count()
        rule = access.visible(self.user, rule_id)
        form = forms.of_rule(rule)
        form.read()
        return self.show(form=form, rule=rule, **self.rule_context(rule))

    def post(self, request: HttpRequest, rule_id: int) -> HttpResponse:
        if deleted_rule := access.deleted(self.user, rule_id):
            return self.show(form=RuleForm(request.POST), deleted_rule=deleted_rule)
        rule = access.visible(self.user, rule_id)
        form = RuleForm(request.POST, rule=rule)
        try:
            self.count()
            return self.save(form, rule)
        except editing.ChangedMeanwhile:
            return self.conflict(form, rule_id)
        except Rule.DoesNotExist:
            return self.show(form=form, deleted_rule=rule)
        except Problem as problem:
            return self.show(form=form, rule=rule, save_error=problem_text(problem), **self.rule_context(rule))

    def save(self, form: RuleForm, rule: Rule) -> HttpResponse:
        rules = access.changeable(self.user, rule.pk)
        if (values := form.read()) is None:
            return self.show(form=form, rule=rule, **self.rule_context(rule))
        since = form.since()
        changed = editing.change(rules, rule.pk, since=since, **values)
        if changed.version == since:
            return self.redirect_to(changed, f"No changes: the rule is the same as version {since}.")
        return self.redirect_to(changed, f"Saved as version {changed.version}. New documents use this version.")

    def conflict(self, form: RuleForm, rule_id: int) -> HttpResponse:
        """Show the typed text and its differences from the current version, which is overwritten by saving again."""
        current = access.visible(self.user, rule_id)
        typed = {**{name: form.typed(name) for name in editing.FIELDS}, SCHEMA: form.formatted() or ""}
        return self.show(
            form=form, rule=current, base_version=form.since(), since=current.version,
            overwrites=comparison.compare(forms.editor_texts(current), typed), **self.rule_context(current),
        )  # fmt: skip


class CheckPage(RulesPage):
    """Validation while the user types. With `format`, or if the table was edited, it also returns the schema."""

    audited = NOTHING
    template_name = "rules/_checked.html"
    http_method_names = ("post",)

    def post(self, request: HttpRequest) -> HttpResponse:
        self.count()
        form = RuleForm(request.POST)
        return self.render_to_response(self.get_context_data(form=form, **check_context(form, request)))


class FieldsPage(Editor):
    """Edits of the table of fields. Returns the check for htmx, or else the editor with the changed schema."""

    audited = NOTHING
    fragment_name = "rules/_checked.html"
    http_method_names = ("post",)

    def post(self, request: HttpRequest) -> HttpResponse:
        self.count()
        number = whole_number(request.POST.get("rule", ""))
        deleted_rule = access.deleted(self.user, number) if number else None
        rule = access.visible(self.user, number) if number and not deleted_rule else None
        form = RuleForm(request.POST, rule=rule)
        context = check_context(form, request) | (self.rule_context(rule) if rule else {})
        return self.show(form=form, rule=rule, deleted_rule=deleted_rule, is_edited=True, **context)


def check_context(form: RuleForm, request: HttpRequest) -> dict[str, Any]:
    """Validate the form. Return the context of the response.

    `formatted`: the schema that replaces the text in the browser, or None. `has_table`: whether the page has the table.
    """
    form.read()
    if not request.POST.get("rule"):
        form.hide_missing_name()
    is_replaced = form.table.is_applied or "format" in request.POST
    has_table = fields.SHOWN in request.POST
    return {"formatted": form.formatted() if is_replaced else None, "has_table": has_table}
