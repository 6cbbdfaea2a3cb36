"""Renderer of JSON responses whose numbers keep their digits."""

from collections.abc import Mapping
from typing import Any

import orjson
from rest_framework.renderers import JSONRenderer
from rest_framework.utils.encoders import JSONEncoder

from config.platform import exact_json
from config.platform.exact_json import Number


class ExactJSONRenderer(JSONRenderer):
    """REST framework's renderer with support for Number, which it would write as a string."""

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        if data is None:
            return b""
        indent = self.get_indent(accepted_media_type or "", dict(renderer_context or {}))
        option = orjson.OPT_PASSTHROUGH_DATETIME | (orjson.OPT_INDENT_2 if indent else 0)
        body = orjson.dumps(data, default=serialize, option=option)
        # As in the base class: escape line separators, so that the JSON is also valid JavaScript.
        return body.replace("\u2028".encode(), b"\\u2028").replace("\u2029".encode(), b"\\u2029")


def serialize(value: Any) -> Any:
    return exact_json.serialize_number(value) if isinstance(value, Number) else JSONEncoder().default(value)
