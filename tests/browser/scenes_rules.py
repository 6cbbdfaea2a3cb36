"""Scenes of the rules pages: empty, busy, and failed."""

from django.conf import settings
from django.contrib.auth.models import User
from django.test import override_settings
from django.utils import timezone

from etl.models import Evaluation, Sample, SampleRun, Task
from rules.library import editing
from rules.loading import system_rules
from rules.models import Rule
from tests.browser.scenes import Scene
from tests.integration.etl_factories import make_row

SCHEMA = {
    "type": "object",
    "properties": {
        "plate": {"type": ["string", "null"], "description": "The registration, as printed."},
        "amount": {"type": ["number", "null"], "description": "What was paid, without the currency."},
    },
    "required": ["plate", "amount"],
    "additionalProperties": False,
}


def content(number: int = 0, **changes: object) -> dict[str, object]:
    return {
        "name": f"Parking tickets of district {number}",
        "description": "Machines of the city, and those of garages.",
        "json_schema": SCHEMA,
        "system_prompt": "You read parking tickets.\nGive what is printed; null for what is not.",
        "postprocess_mode": "llm",
        "postprocess_strategy": "",
        **changes,
    }


def newest(user: User) -> Rule:
    return Rule.objects.filter(owner=user).latest("rule_id")


def one(user: User) -> None:
    system_rules.load_all()
    editing.create(owner=user, values=content())


def many(user: User) -> None:
    system_rules.load_all()
    with override_settings(SLUICE=settings.SLUICE.model_copy(update={"etl_daily_rule_versions": 2000})):
        for number in range(1000):
            editing.create(owner=user, values=content(number))
    rule = newest(user)
    Task.objects.bulk_create(
        Task(user=user, rule=rule, rule_version=1, kind="pdf", size=1, document_key=f"etl/documents/{n}")
        for n in range(1200)
    )


def edited(user: User) -> None:
    one(user)
    rules, rule = Rule.objects.all(), newest(user)
    editing.change(rules, rule.pk, system_prompt="You read parking tickets of Lyon.\nGive what is printed.")
    wider = {**SCHEMA, "properties": {**SCHEMA["properties"], "until": {"type": ["string", "null"], "format": "time"}}}  # type: ignore[dict-item]
    editing.change(rules, rule.pk, json_schema=wider, postprocess_strategy="direct-json")


def broken(user: User) -> None:
    """Create a rule that was saved under earlier limits and that the API now refuses."""
    one(user)
    bad = {**SCHEMA, "required": "plate", "properties": {"plate": {"type": "text"}, "amount": {"$ref": "other.json"}}}
    Rule.objects.filter(pk=newest(user).pk).update(json_schema=bad, name="")


def evaluated(user: User) -> None:
    """Create three evaluations of a rule with three samples: the second is worse than the first, and the third runs."""
    edited(user)
    rule, now = newest(user), timezone.now()
    for number in range(3):
        task = make_row(user, f"Parking ticket {number}", rule=rule, filename=f"ticket-{number}.pdf")
        Sample.objects.create(rule=rule, task=task, expected={"plate": f"AB-{number}", "amount": 4.5})
    for number, (version, share) in enumerate(((1, 1.0), (3, 0.5), (3, None)), start=1):
        ended = {
            "status": "completed",
            "accuracy": share,
            "fields": {"/plate": share, "/amount": share},
            "ended_at": now,
        }
        evaluation = Evaluation.objects.create(
            rule=rule, number=number, version=version, user=user, samples=3, **(ended if share is not None else {})
        )
        for sample in Sample.objects.filter(rule=rule):
            SampleRun.objects.create(evaluation=evaluation, sample=sample)


def path_of(user: User, rest: str = "") -> str:
    return f"/app/rules/{newest(user).pk}{rest}"


SCENES = [
    Scene(name="rules-empty", path=lambda _: "/app/rules?whose=mine"),
    Scene(name="rules", path=lambda _: "/app/rules", prepare=one),
    Scene(name="rules-busy", path=lambda _: "/app/rules", prepare=many),
    Scene(name="rule-new", path=lambda _: "/app/rules/new", prepare=one),
    Scene(name="rule", path=path_of, prepare=one),
    Scene(name="rule-failed", path=path_of, prepare=broken),
    Scene(
        name="rule-system",
        path=lambda _: f"/app/rules/{Rule.objects.get(slug='invoice').pk}",
        prepare=one,
    ),
    Scene(name="rule-versions", path=lambda user: path_of(user, "/versions"), prepare=edited),
    Scene(name="rule-evaluations-empty", path=lambda user: path_of(user, "/evaluations"), prepare=one),
    Scene(name="rule-evaluations", path=lambda user: path_of(user, "/evaluations"), prepare=evaluated),
    Scene(name="rule-evaluations-compared", path=lambda user: path_of(user, "/evaluations?a=1&b=2"), prepare=evaluated),
    Scene(name="rule-version", path=lambda user: path_of(user, "/versions/1"), prepare=edited),
]
