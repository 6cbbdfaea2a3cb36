"""How rules look, for the OpenAPI schema alone: nothing here runs when a request is answered."""

from rest_framework import serializers

from rules.library.serializers import ModeField


class Rule(serializers.Serializer):
    """How a document's Markdown becomes JSON."""

    rule_id = serializers.IntegerField()
    name = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    json_schema = serializers.DictField(allow_null=True, help_text="What results fit; null only with skip.")
    system_prompt = serializers.CharField(allow_blank=True)
    postprocess_mode = ModeField()
    postprocess_strategy = serializers.CharField(allow_null=True, help_text="Null: by the length of the document.")
    version = serializers.IntegerField(help_text="Grows by one with every change.")
    is_system = serializers.BooleanField(help_text="Everybody's, and nobody's to change.")
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
