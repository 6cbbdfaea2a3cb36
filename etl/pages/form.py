"""The upload form of documents and its limits."""

from typing import Any, cast
from uuid import uuid4

from django import forms
from django.conf import settings
from django.contrib.auth.models import User

from config.platform.http.quotas import left, seconds_left
from config.platform.ui.templatetags.pages import size
from etl.core.formats import DocumentFormat
from etl.ingest import acceptance
from etl.pipeline import budgets, engines, quotas
from rules.library.choices import rules_for

OTHER_EXTENSIONS = {
    DocumentFormat.JPEG: (".jpeg",),
    DocumentFormat.TIFF: (".tif",),
    DocumentFormat.HTML: (".htm",),
    DocumentFormat.MARKDOWN: (".markdown",),
}


class SubmitForm(forms.Form):
    file = forms.FileField(label="Document")
    rule_id = forms.ChoiceField(label="Rule", required=False)
    more_extensions: tuple[str, ...] = ()  # for the file picker, besides those of documents

    def __init__(self, *args: Any, user: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        default, groups = rules_for(user)
        first = ("", f"Default: {default}") if default else ("", "Choose a rule")
        fields = cast("dict[str, Any]", self.fields)
        fields["rule_id"].choices = [first, *groups]
        fields["file"].widget.attrs["accept"] = ",".join([*extensions(), *self.more_extensions])
        self.once = uuid4()  # idempotency key: a form that is submitted twice creates one task or batch


def limits() -> dict[str, Any]:
    """Return the upload limits that the form shows."""
    words = [acceptance.format_name(kind) for kind in engines.formats()]
    return {
        "kinds": f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words),
        "bytes": settings.SLUICE.etl_max_file_bytes,
        "size": size(settings.SLUICE.etl_max_file_bytes),
        "pages": settings.SLUICE.etl_max_pages,
    }


def quota_left(user_id: int) -> dict[str, Any]:
    """Return the remaining quota of a user for templates."""
    quota, tokens = quotas.state(user_id), budgets.state(user_id, 0)
    return {
        "documents": left(quota.daily_documents, quota.documents),
        "daily_documents": quota.daily_documents,
        "size": size(left(quota.daily_bytes, quota.bytes)),
        "daily_size": size(quota.daily_bytes),
        "daily_tokens": tokens.user_limit,
        "tokens": None if tokens.user_limit is None else left(tokens.user_limit, tokens.user_used),
        "open": left(quota.max_open, quota.open),
        "max_open": quota.max_open,
        "is_used_up": quota.documents >= quota.daily_documents or quota.bytes >= quota.daily_bytes,
        "seconds": seconds_left(),
    }


def extensions() -> list[str]:
    """Return the file extensions for file pickers. The server checks the content, not the extension."""
    return [each for kind in engines.formats() for each in (f".{kind.value}", *OTHER_EXTENSIONS.get(kind, ()))]
