"""Pages of samples and evaluations of a rule. They call the same functions as the API."""

from typing import Any

from django.contrib import messages
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast, Left
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.text import normalize_newlines

from config.platform.http.audit import CHANGES, OPENS_DATA
from config.platform.http.paging import whole_number
from config.platform.http.problems import BadInput, InputError, Problem
from config.platform.ui.base import Action, Listing, problem_text
from etl.evaluation import evaluations, samples
from etl.models import Evaluation, Sample
from etl.models.evaluation import EvaluationStatus
from etl.pages.base import visible
from rules.api import rates
from rules.library import access
from rules.models import Rule
from rules.pages.base import RulesPage

MAX_SHOWN = 5  # errors of the expected data
MAX_EXPECTED = 4_000  # characters of a sample's expected data that the page shows


class OwnRulePage(RulesPage):
    """A page about a rule that the user may change. Other users get the same errors as from the API."""

    def rules(self) -> QuerySet[Rule]:
        return access.changeable(self.user, self.kwargs["rule_id"])

    def rule(self) -> Rule:
        return self.rules().get(pk=self.kwargs["rule_id"])


class EvaluationsPage(OwnRulePage):
    """The evaluations of a rule, the comparison of `?a=` and `?b=`, and the samples."""

    audited = OPENS_DATA
    template_name = "etl/evaluations.html"
    fragment_name = "etl/_evaluations.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        rule = self.rule()
        listing = Listing(self.request, evaluations.of_rule(rule.pk), ordering=("-id",))
        for row in listing.rows:
            row.per_sample = row.duration_ms / 1000 / row.ended if row.ended else None
        is_fragment = self.fragment_name in self.get_template_names()
        return super().get_context_data(
            title=f"Evaluations of {rule.name}",
            rule=rule,
            listing=listing,
            rows=listing.rows,
            here=reverse("rule-evaluations", args=[rule.pk]),
            query=self.request.GET.urlencode(),
            is_running=any(row.status == EvaluationStatus.RUNNING for row in listing.rows),
            **({} if is_fragment else self.page_context(rule)),
            **context,
        )

    def page_context(self, rule: Rule) -> dict[str, Any]:
        """Return the context that the fragment does not need: samples, and the comparison of two evaluations."""
        rows = Sample.objects.filter(rule=rule).with_task()
        shortened = rows.defer("expected").annotate(shown=Left(Cast("expected", TextField()), MAX_EXPECTED))
        newest = list(Evaluation.objects.filter(rule=rule).order_by("-id").values_list("number", flat=True)[:2])
        a, b = (whole_number(self.request.GET.get(name, "")) for name in ("a", "b"))
        if not (a and b):
            b, a = (newest * 2)[:2] if newest else (0, 0)
        return {
            "samples": list(shortened.order_by("-id")),
            "max_samples": samples.MAX_SAMPLES,
            "max_expected": MAX_EXPECTED,
            "a": a,
            "b": b,
            "compared": evaluations.compare(rule.pk, a, b) if a and b else None,
        }


class AddSample(EvaluationsPage):
    """The form that adds a document by its number. A refused form is shown again with the typed text."""

    http_method_names = ("post",)

    def post(self, request: HttpRequest, **_kwargs: Any) -> HttpResponse:
        typed = normalize_newlines(request.POST.get("expected", ""))
        number = request.POST.get("task", "").strip()
        rule = self.rule()
        try:
            self.count()
            task = samples.owned_task(whole_number(number) or 0, user=self.user)
            expected = samples.parse(typed) if typed.strip() else samples.result_of(task)
            sample, is_new = samples.add(self.rules(), rule.pk, task, expected)
        except Problem as problem:
            context = self.get_context_data(typed=typed, number=number, **refusal(problem))
            return self.render_to_response(context, status=problem.status)
        verb = "added" if is_new else "updated"
        messages.success(request, f"Sample {verb}: {sample.task.filename or f'task {sample.task_id}'}.")
        return redirect(f"{reverse('rule-evaluations', args=[rule.pk])}#samples")

    def get_template_names(self) -> list[str]:
        return [self.template_name]


def refusal(problem: Problem) -> dict[str, Any]:
    """Return the reasons by field, with their places in the expected data."""
    if not isinstance(problem, BadInput):
        return {"refused": [problem_text(problem)]}
    of_task = [each.detail for each in problem.errors if each.pointer == "/task_id"]
    of_data = [with_place(each) for each in problem.errors[:MAX_SHOWN] if each.pointer != "/task_id"]
    return {"refused_task": of_task, "refused_data": of_data}


def with_place(error: InputError) -> str:
    place = error.pointer.removeprefix(samples.POINTER)
    return f"{place}: {error.detail}" if place else error.detail


class DeleteSample(Action):
    throttle = rates.EtlThrottle

    def act(self, *, rule_id: int, sample_id: int) -> str:
        access.changeable(self.user, rule_id)
        samples.delete(rule_id, sample_id)
        return "Sample deleted."

    def next_url(self, *, rule_id: int, sample_id: int) -> str:
        return f"{reverse('rule-evaluations', args=[rule_id])}#samples"


class AddResult(Action):
    """The button that adds a completed document to the samples of its rule, with its result as the expected data."""

    throttle = rates.EtlThrottle

    def act(self, *, task_id: int) -> str:
        task = samples.owned_task(visible(task_id, user=self.user).pk, user=self.user)
        rules = access.changeable(self.user, task.rule_id)
        samples.add(rules, task.rule_id, task, samples.result_of(task))
        return "Added to the samples of its rule. Evaluations expect this result."

    def next_url(self, *, task_id: int) -> str:
        return reverse("document", args=[task_id])


class StartEvaluation(Action):
    throttle = rates.EtlThrottle

    def act(self, *, rule_id: int) -> str:
        rules = access.changeable(self.user, rule_id)
        typed = self.request.POST.get("version", "").strip()
        version = (whole_number(typed) or -1) if typed else None  # no rule has version -1, so it is refused
        started = evaluations.start(rules, rule_id, version=version, user=self.user)
        return f"Evaluation of version {started.version} started."

    def next_url(self, *, rule_id: int) -> str:
        return reverse("rule-evaluations", args=[rule_id])


class CancelEvaluation(Action):
    throttle = rates.EtlThrottle

    def act(self, *, rule_id: int, number: int) -> str:
        access.changeable(self.user, rule_id)
        evaluations.cancel(evaluations.find(rule_id, number))
        return f"Evaluation {number} cancelled."

    def next_url(self, *, rule_id: int, number: int) -> str:
        return reverse("rule-evaluations", args=[rule_id])


class AccuraciesFragment(OwnRulePage):
    """The accuracy of each evaluated version, for the page of versions."""

    audited = CHANGES
    template_name = "etl/_accuracies.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        rule = self.rule()
        found = evaluations.by_version(rule.pk)
        return super().get_context_data(
            rule=rule,
            accuracies=found,
            current=next((each for each in found if each.evaluation.version == rule.version), None),
            has_samples=Sample.objects.filter(rule=rule).exists(),
            **context,
        )
