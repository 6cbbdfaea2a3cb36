"""Trying a rule out. The rest of what there is about rules is in `rules`, which does not know of post-processing."""

from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from config.api.problems import BadInput, BodyTooLarge
from config.api.schema import problems
from config.api.serializers import StrictSerializer
from etl import operations, schemas, trial
from rules import catalog, rates
from rules.schemas import TAGS
from rules.serializers import FilledText
from rules.views import NoSuchRule, visible

MAX_MARKDOWN = 1_000_000  # characters


class TrialSerializer(StrictSerializer):
    """A document's text, as OCR would give it."""

    markdown = FilledText(
        max_length=MAX_MARKDOWN, help_text="Lines such as `<!-- page: 2 -->` begin pages; without any it is one page."
    )


@extend_schema_field(
    {
        **schemas.OBJECT,
        "required": ["markdown_s3_key", "provider_task_id", "metadata"],
        "properties": {
            "markdown_s3_key": {"type": "null"},
            "provider_task_id": {"type": "null"},
            "metadata": schemas.OBJECT,
            "data": {"description": "What was found; fits the rule's schema. Not with `skip`."},
            "output_s3_key": {"type": "null"},
            "citations": schemas.CITATIONS,
        },
    }
)
class TrialResultField(serializers.JSONField):
    """What a task's `result` would hold; null where that is about files."""


class TrialUsage(serializers.Serializer):
    prompt_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    calls = serializers.IntegerField()


class TrialPassed(serializers.Serializer):
    ok = serializers.BooleanField(help_text="true")
    result = TrialResultField()
    usage = TrialUsage()
    warnings = schemas.Warning(many=True)


class TrialFailed(serializers.Serializer):
    ok = serializers.BooleanField(help_text="false")
    error = schemas.TaskFailure(help_text="What a task would end with.")
    usage = TrialUsage()
    warnings = schemas.Warning(many=True)


OUTCOME = PolymorphicProxySerializer(
    component_name="RuleTrial", serializers=[TrialPassed, TrialFailed], resource_type_field_name=None
)


class Trial(APIView):
    """`POST /api/v1/etl/rules/{rule_id}/test`."""

    throttle_classes = (rates.PerUser,)

    @extend_schema(
        operation_id="testRule",
        **operations.TRIAL,
        tags=TAGS,
        request=TrialSerializer,
        responses={200: OUTCOME, **problems(BadInput, NoSuchRule, BodyTooLarge, trial.TooManyTrials)},
    )
    def post(self, request: Request, rule_id: int) -> Response:
        rule = catalog.as_content(visible(request, rule_id))
        serializer = TrialSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        return Response(trial.run(rule, markdown=serializer.validated_data["markdown"]))
