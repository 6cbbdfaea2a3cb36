"""Trying a rule in the editor, as it is typed, before it is saved: on Markdown from anywhere, or from a document."""

import json
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from rest_framework.exceptions import ValidationError

from config.platform import storage
from config.platform.http.problems import BadInput, NotFound, Problem, input_errors
from config.platform.ui.base import told
from etl.api import lookup
from etl.api.serializers import MAX_MARKDOWN, TrialSerializer
from etl.core.states import ENDED
from etl.ingest import acceptance
from etl.models import Task
from etl.pages import explanations
from etl.pipeline import actions, trial
from rules.library import access, catalog
from rules.library.content import RuleContent
from rules.models import Rule
from rules.pages import forms
from rules.pages.base import RulesPage, number_in
from rules.pages.editor import Editor
from rules.pages.forms import RuleForm

NEWEST = 50
# How sure a citation is, see etl.postprocessors.citations.
MATCHES = {
    "exact": "word for word",
    "normalized": "but for spaces and capitals",
    "numeric": "as the same number",
    "value": "the value, not a quote",
}


class NoMarkdownYet(Problem):
    status = 409
    code = "not_ready"
    detail = "This document has no Markdown yet. Wait until OCR has ended, or choose another document."


class MarkdownTooLong(Problem):
    status = 413
    code = "markdown_too_long"
    detail = (
        "This document's Markdown is too long to test a rule on this page. Submit the document with the rule instead."
    )


class NoSuchDocument(NotFound):
    detail = "Document not found. Enter the number shown in your list of documents."


class Try(Editor):
    """The outcome alone for htmx; otherwise the editor again, with the outcome below it."""

    fragment_name = "rules/_outcome.html"
    http_method_names = ("post",)

    def post(self, request: HttpRequest) -> HttpResponse:
        number = number_in(request.POST.get("rule", ""))
        rule = access.visible(self.user, number) if number else None
        # Without fields it is a rule that is only shown: it is tried as it is.
        is_shown = rule and "name" not in request.POST
        form = forms.of_rule(rule) if rule and is_shown else RuleForm(request.POST, rule=rule)
        markdown = request.POST.get("markdown", "")
        outcome = self.outcome(form, rule, markdown=forms.lines(markdown))
        around = self.standing(rule) if rule else {}
        return self.show(form=form, rule=rule, markdown=markdown, **outcome, **around)

    def outcome(self, form: RuleForm, rule: Rule | None, *, markdown: str) -> dict[str, Any]:
        """Return what came of it, or what is in the way, at the Markdown or in the rule."""
        try:
            self.count()
            says = form.read()
            if says is None:
                return {"refused": form.flaws}
            if not (text := self.text(markdown)).strip():
                return {"in_the_way": "Paste some Markdown first, or choose a document."}
            return {"outcome": shown(trial.run(content(rule, says), markdown=text))}
        except ValidationError as error:
            return {"in_the_way": told(BadInput(*input_errors(error.detail)))}
        except Problem as problem:
            return {"in_the_way": told(problem)}

    def text(self, markdown: str) -> str:
        """Return the Markdown as the API would take it: what was typed, or that of the document that was named."""
        number = number_in(self.request.POST.get("document", ""))
        if not markdown.strip() and number:
            markdown = markdown_of(number, user=self.user)
        if markdown.strip():
            TrialSerializer(data={"markdown": markdown}).is_valid(raise_exception=True)
        return markdown


def content(rule: Rule | None, says: dict[str, Any]) -> RuleContent:
    """Return a rule as it is typed; one that was never saved has the number and version 0."""
    return catalog.as_content(Rule(rule_id=rule.pk if rule else 0, version=rule.version if rule else 0, **says))


def shown(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer with its data as text to be read."""
    result = answer.get("result") or {}
    data = result.get("data", result)
    cited = [{**each, "how": MATCHES.get(each["match"], each["match"])} for each in result.get("citations", [])]
    return {
        **answer,
        "citations": cited,
        "text": json.dumps(data, indent=2, ensure_ascii=False),
        "has_data": "data" in result,
        "to_mend": None if answer["ok"] else explanations.to_mend(answer["error"]),
    }


class Documents(RulesPage):
    """What to take Markdown from: my newest documents that were read."""

    template_name = "rules/_documents.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        newest = Task.objects.filter(user=self.user, status__in=ENDED).order_by("-created_at", "-task_id")
        read = [state for state in lookup.shown(newest.defer("result")[:NEWEST]) if state.markdown_key]
        return super().get_context_data(documents=read, **context)


class Sample(RulesPage):
    """The text area with a document's Markdown in it."""

    template_name = "rules/_sample.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        number = number_in(self.request.GET.get("document", ""))
        try:
            found = {"markdown": markdown_of(number, user=self.user)} if number else {}
        except Problem as problem:
            found = {"in_the_way": told(problem)}
        return super().get_context_data(taken_from="document", **found, **context)


def markdown_of(task_id: int, *, user: User) -> str:
    """Return what OCR found. Raises NoSuchDocument, NoMarkdownYet, MarkdownTooLong, ArtefactMissing and
    StorageUnavailable."""
    state = lookup.find(task_id, user=user)
    if state is None:
        raise NoSuchDocument
    if not state.markdown_key:
        raise NoMarkdownYet
    with acceptance.storing():
        found = storage.head(state.markdown_key)
        if found is None:
            raise actions.OcrResultMissing
        if found.size > 4 * MAX_MARKDOWN:  # bytes of UTF-8
            raise MarkdownTooLong
        text = b"".join(storage.read(state.markdown_key, if_match=found.etag)).decode()
    if len(text) > MAX_MARKDOWN:
        raise MarkdownTooLong
    return text
