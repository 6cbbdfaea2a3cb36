"""Test runs of a rule in the editor before it is saved, on pasted Markdown or the Markdown of a document."""

from functools import partial
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.utils.text import normalize_newlines

from config.platform import exact_json, storage
from config.platform.http import large_bodies
from config.platform.http.audit import CHANGES, OPENS_DATA
from config.platform.http.paging import whole_number
from config.platform.http.problems import NotFound, Problem
from config.platform.ui.base import is_htmx, problem_text, validated
from etl.api import lookup
from etl.api.serializers import MAX_MARKDOWN, TrialSerializer
from etl.core.states import ENDED
from etl.ingest import acceptance
from etl.models import Task
from etl.pages import explanations
from etl.pipeline import actions, engines, suggestions, trial
from etl.runstate import RunState
from rules.library import access, catalog
from rules.library.content import RuleContent
from rules.models import Rule
from rules.pages import fields, forms
from rules.pages.base import RulesPage
from rules.pages.editor import Editor
from rules.pages.forms import RuleForm

MAX_DOCUMENTS = 50
NO_TEXT = "Paste Markdown or choose a document first."


class NoMarkdownYet(Problem):
    status = 409
    code = "not_ready"
    detail = "This document has no Markdown yet: OCR has not ended, or it failed. Wait, or choose another document."


class MarkdownTooLong(Problem):
    status = 413
    code = "markdown_too_long"
    detail = (
        f"This document's Markdown has more than {MAX_MARKDOWN:,} characters, the limit of a test. Submit the document "
        "with the rule instead."
    )


class NoSuchDocument(NotFound):
    detail = "Document not found. Enter the number shown in your list of documents."


class RuleTrialPage(Editor):
    """Endpoint that tests a rule. It returns the result for htmx, or else the whole editor with the result."""

    audited = OPENS_DATA  # a response with status 200 is a result; on other pages, it is a refused form
    fragment_name = "rules/_outcome.html"
    http_method_names = ("post",)

    def post(self, request: HttpRequest) -> HttpResponse:
        rule, deleted_rule = self.edited_rule()
        # A form without fields shows a read-only rule, which is tested as saved.
        form = forms.of_rule(rule) if rule and "name" not in request.POST else RuleForm(request.POST, rule=rule)
        markdown = request.POST.get("markdown", "")
        outcome = self.outcome(form, rule, markdown=normalize_newlines(markdown))
        context = self.rule_context(rule) if rule else {}
        return self.show(form=form, rule=rule, deleted_rule=deleted_rule, markdown=markdown, **outcome, **context)

    def edited_rule(self) -> tuple[Rule | None, Rule | None]:
        """Return the rule, and the user's rule that was deleted in the meantime. Raises NoSuchRule."""
        number = whole_number(self.request.POST.get("rule", ""))
        deleted_rule = access.deleted(self.user, number) if number else None
        return access.visible(self.user, number) if number and not deleted_rule else None, deleted_rule

    def outcome(self, form: RuleForm, rule: Rule | None, *, markdown: str) -> dict[str, Any]:
        """Return the result, or the reason why the test did not run."""
        try:
            self.count()
            values = form.read()
            if values is None:
                return {"refused": form.flaws}
            if not (text := self.text(markdown)).strip():
                return {"blocker": NO_TEXT}
            end_turn = partial(large_bodies.end_turn, self.request)
            rule_content = content(rule, values)
            document = self.document() if engines.reads_images(rule_content) else None
            found = trial.run(rule_content, markdown=text, user=self.user, before_wait=end_turn, document=document)
            return {"outcome": shown(found)}
        except Problem as problem:
            return {"blocker": problem_text(problem)}

    def document(self) -> RunState | None:
        """Return the selected document, whose pages are shown to a model. Raises NoSuchDocument."""
        number = whole_number(self.request.POST.get("document", ""))
        if not number:
            return None
        state = visible(number, user=self.user)
        lookup.record_access(state, user=self.user, message="On the web page: opened the pages to test a rule.")
        return state

    def text(self, markdown: str) -> str:
        """Return the typed Markdown or, if none was typed, that of the selected document.

        Raises BadInput if it is invalid, and the errors of `markdown_of`.
        """
        number = whole_number(self.request.POST.get("document", ""))
        if not markdown.strip() and number:
            markdown = markdown_of(number, user=self.user)
        if markdown.strip():
            validated(TrialSerializer, {"markdown": markdown})
        return markdown


class SuggestionPage(RuleTrialPage):
    """Endpoint that suggests a schema for the text. It returns the suggestion for htmx, or else the whole editor."""

    def post(self, request: HttpRequest) -> HttpResponse:
        rule, deleted_rule = self.edited_rule()
        form = RuleForm(request.POST, rule=rule)
        markdown = request.POST.get("markdown", "")
        outcome = self.suggest(form, rule, markdown=normalize_newlines(markdown))
        form.read()
        context = self.rule_context(rule) if rule else {}
        return self.show(
            form=form,
            rule=rule,
            deleted_rule=deleted_rule,
            markdown=markdown,
            is_edited=True,
            is_fragment=is_htmx(request),
            **outcome,
            **context,
        )

    def suggest(self, form: RuleForm, rule: Rule | None, *, markdown: str) -> dict[str, Any]:
        """Replace the form's schema. Return the number of fields, or the reason why there are none."""
        try:
            self.count()
            if not (text := self.text(markdown)).strip():
                return {"blocker": NO_TEXT}
            end_turn = partial(large_bodies.end_turn, self.request)
            found = suggestions.run(text, rule_id=rule.pk if rule else 0, user=self.user, before_wait=end_turn)
        except Problem as problem:
            return {"blocker": problem_text(problem)}
        if not found["ok"]:
            return {"blocker": f"No schema was suggested. {found['error']['detail']}"}
        schema = fields.schema_of(found["result"]["data"]["fields"])
        if not schema["properties"]:
            return {"blocker": "No schema was suggested: the model found no fields in the text."}
        form.replace_schema(schema)
        return {"suggested": len(schema["properties"])}


def content(rule: Rule | None, values: dict[str, Any]) -> RuleContent:
    """Return the rule as typed. An unsaved rule has ID and version 0."""
    return catalog.as_content(Rule(rule_id=rule.pk if rule else 0, version=rule.version if rule else 0, **values))


def shown(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a test for the template."""
    result = answer.get("result") or {}
    data = result.get("data", result)
    cited = [{**each, "how": explanations.of_match(each["match"]).title} for each in result.get("citations", [])]
    return {
        **answer,
        "citations": cited,
        "text": exact_json.dumps(data, indent=True).decode(),
        "has_data": "data" in result,
        "permanent": None if answer["ok"] else explanations.of_permanent(answer["error"]),
    }


class RuleDocumentsFragment(RulesPage):
    """The user's newest parsed documents, for choosing the Markdown of a test."""

    audited = CHANGES
    template_name = "rules/_documents.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        newest = Task.objects.filter(user=self.user, status__in=ENDED).order_by("-created_at", "-task_id")
        states = lookup.states_of_rows(newest.prefetch_related("approved_by").without_results()[:MAX_DOCUMENTS])
        read = [state for state in states if state.markdown_key]
        return super().get_context_data(documents=read, **context)


class SampleMarkdownFragment(RulesPage):
    """The text area with a document's Markdown."""

    audited = OPENS_DATA
    template_name = "rules/_sample.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        number = whole_number(self.request.GET.get("document", ""))
        try:
            found = {"markdown": markdown_of(number, user=self.user)} if number else {}
        except Problem as problem:
            found = {"blocker": problem_text(problem)}
        return super().get_context_data(taken_from="document", **found, **context)


def visible(task_id: int, *, user: User) -> RunState:
    """Return a document that the user may see. Raises NoSuchDocument."""
    state = lookup.find(task_id, user=user)
    if state is None:
        raise NoSuchDocument
    return state


def markdown_of(task_id: int, *, user: User) -> str:
    """Return the Markdown of a document. Raises NoSuchDocument, NoMarkdownYet, MarkdownTooLong, OcrResultMissing, and
    StorageUnavailable."""
    state = visible(task_id, user=user)
    if not state.markdown_key:
        raise NoMarkdownYet
    with acceptance.translate_storage_errors():
        found = storage.head(state.markdown_key)
        if found is None:
            raise actions.OcrResultMissing
        if found.size > 4 * MAX_MARKDOWN:  # bytes of UTF-8
            raise MarkdownTooLong
        lookup.record_access(state, user=user, message="On the web page: opened the Markdown to test a rule.")
        text = b"".join(storage.read(state.markdown_key, if_match=found.etag)).decode()
    if len(text) > MAX_MARKDOWN:
        raise MarkdownTooLong
    return text
