"""A rule in the editor: looked at, made, checked while it is typed, and saved as a new version.

Whatever goes wrong, what was typed is in the answer: a rule may be an hour's work.
"""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from config.platform.http.problems import Problem
from config.platform.ui.base import told
from rules.library import access, catalog, editing, requirements
from rules.models import Rule
from rules.pages import comparison, explanations, forms
from rules.pages.base import RulesPage, number_in
from rules.pages.forms import SCHEMA, RuleForm


class Editor(RulesPage):
    """The form, and what is around it. `rule` is none for a new one."""

    template_name = "rules/editor.html"
    fragment_name = "rules/_form.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        form: RuleForm = context["form"]
        rule: Rule | None = context.get("rule")
        return super().get_context_data(
            title=f"Rule {rule.pk}: {rule.name}" if rule else "A new rule",
            modes=explanations.modes(), strategies=explanations.strategies(),
            typed={name: form.typed(name) for name in editing.SAYS},
            mode_label=explanations.mode(form.typed("postprocess_mode")),
            strategy_label=explanations.strategy(form.typed("postprocess_strategy")),
            lacks_model=requirements.lacks_model(form.typed("postprocess_mode")),
            **context,
        )  # fmt: skip

    def show(self, **context: Any) -> HttpResponse:
        return self.render_to_response(self.get_context_data(**context))

    def standing(self, rule: Rule) -> dict[str, Any]:
        default = catalog.default()
        return {
            "is_changeable": access.is_changeable(self.user, rule),
            "is_system": catalog.is_system(rule),
            "is_default": default is not None and default.pk == rule.pk,
        }

    def saved(self, rule: Rule, words: str) -> HttpResponse:
        """Lead on to the rule. htmx follows a redirect by itself, and would put the next page into this one."""
        messages.success(self.request, words)
        where = reverse("rule", args=[rule.pk])
        if self.request.headers.get("HX-Request"):
            return HttpResponse(status=204, headers={"HX-Redirect": where})
        return redirect(where)


class New(Editor):
    """`?from=` is the rule to begin with."""

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        self.count()
        source = number_in(request.GET.get("from", ""))
        form = forms.copy_of(access.visible(self.user, source)) if source else forms.empty()
        form.read()
        return self.show(form=form, samples=catalog.visible_to(self.user).filter(owner=None).order_by("name"))

    def post(self, request: HttpRequest) -> HttpResponse:
        form = RuleForm(request.POST)
        try:
            self.count()
            if (says := form.read()) is None:
                return self.show(form=form)
            rule = editing.create(owner=self.user, says=says)
        except Problem as problem:
            return self.show(form=form, trouble=told(problem))
        return self.saved(rule, f"“{rule.name}” is saved. Documents can be submitted with it from now on.")


class OneRule(Editor):
    """A rule: in the editor where the user may change it, else to be read and copied."""

    def get(self, request: HttpRequest, rule_id: int) -> HttpResponse:
        self.count()
        rule = access.visible(self.user, rule_id)
        form = forms.of_rule(rule)
        form.read()
        return self.show(form=form, rule=rule, **self.standing(rule))

    def post(self, request: HttpRequest, rule_id: int) -> HttpResponse:
        if gone := access.deleted(self.user, rule_id):
            return self.show(form=RuleForm(request.POST), gone=gone)
        rule = access.visible(self.user, rule_id)
        form = RuleForm(request.POST, rule=rule)
        try:
            self.count()
            return self.save(form, rule)
        except editing.ChangedMeanwhile:
            return self.conflict(form, rule_id)
        except Rule.DoesNotExist:
            return self.show(form=form, gone=rule)
        except Problem as problem:
            return self.show(form=form, rule=rule, trouble=told(problem), **self.standing(rule))

    def save(self, form: RuleForm, rule: Rule) -> HttpResponse:
        rules = access.changeable(self.user, rule.pk)
        if (says := form.read()) is None:
            return self.show(form=form, rule=rule, **self.standing(rule))
        since = form.since()
        changed = editing.change(rules, rule.pk, since=since, **says)
        if changed.version == since:
            return self.saved(changed, f"Nothing was changed: it says the same as version {since}.")
        return self.saved(changed, f"Saved as version {changed.version}. Documents from now on are read with it.")

    def conflict(self, form: RuleForm, rule_id: int) -> HttpResponse:
        """Show what was typed beside what is there now. Who saves once more has seen that."""
        now = access.visible(self.user, rule_id)
        typed = {**{name: form.typed(name) for name in editing.SAYS}, SCHEMA: form.formatted() or ""}
        return self.show(
            form=form, rule=now, began=form.since(), since=now.version,
            overwrites=comparison.compare(forms.says(now), typed), **self.standing(now),
        )  # fmt: skip


class Check(RulesPage):
    """What the API would say of what is typed, for those who still type. With `format` also the schema, indented."""

    template_name = "rules/_check.html"
    http_method_names = ("post",)

    def post(self, request: HttpRequest) -> HttpResponse:
        self.count()
        form = RuleForm(request.POST)
        form.read()
        formatted = form.formatted() if "format" in request.POST else None
        return self.render_to_response(self.get_context_data(form=form, formatted=formatted))
