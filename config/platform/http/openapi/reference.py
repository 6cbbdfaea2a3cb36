"""The API reference: the OpenAPI document as sections of operations, for the page `/api/docs`.

The texts are part of the source code, so their Markdown is rendered without a sanitizer. HTML in them is escaped.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.utils.safestring import SafeString
from drf_spectacular.renderers import OpenApiJsonRenderer
from markdown_it import MarkdownIt

from config.platform.http.openapi.document import document, schema_lock

MAX_LEVELS = 5
MAX_EXAMPLE = 4_000  # characters of an example
JSON = "application/json"
METHODS = ("get", "post", "put", "patch", "delete")
Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A row of a table: a parameter, a header, or a field of a body. `level`: its depth of nesting."""

    name: str
    place: str = ""  # for a parameter: path, query, or header
    kind: str
    is_required: bool
    about: SafeString
    level: int = 0
    default: str = ""
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    media_type: str
    variants: list[tuple[str, list[Field]]]  # titles and fields of alternatives
    examples: list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    status: str
    about: SafeString
    headers: list[Field]
    bodies: list[Body]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    name: str
    method: str
    path: str
    summary: str
    about: SafeString
    scopes: tuple[str, ...]
    is_open: bool
    parameters: list[Field]
    bodies: list[Body]
    responses: list[Response]
    is_event: bool = False

    @property
    def example(self) -> str:
        """The first example of a JSON body, or "" if there is none."""
        return next((text for body in self.bodies if body.media_type == JSON for _, text in body.examples), "")

    @property
    def takes_json(self) -> bool:
        return any(body.media_type == JSON for body in self.bodies)

    @property
    def can_be_tried(self) -> bool:
        return not self.is_event and (not self.bodies or self.takes_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    name: str
    about: SafeString
    operations: list[Operation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    title: str
    version: str
    about: SafeString
    sections: list[Section]


@cache
def reference() -> Reference:
    """Return the reference of this process's API."""
    with schema_lock:
        content, _ = document(OpenApiJsonRenderer, is_gzip=False)
    return Reader(json.loads(content)).reference()


def render_markdown(text: str) -> SafeString:
    return SafeString(MarkdownIt("commonmark", {"html": False}).enable("table").render(text))


class Reader:
    """Reader of an OpenAPI document."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def reference(self) -> Reference:
        found = [*self.operations()]
        sections = [
            Section(
                name=tag["name"],
                about=render_markdown(tag.get("description", "")),
                operations=[operation for name, operation in found if name == tag["name"]],
            )
            for tag in self.document["tags"]
        ]
        info = self.document["info"]
        return Reference(
            title=info["title"], version=info["version"], about=render_markdown(info["description"]), sections=sections
        )

    def operations(self) -> Iterator[tuple[str, Operation]]:
        for path, item in self.document["paths"].items():
            for method in METHODS:
                if method in item:
                    yield item[method]["tags"][0], self.operation(method, path, item[method])
        for name, item in self.document.get("webhooks", {}).items():
            for method, found in item.items():
                yield found["tags"][0], self.operation(method, name, found, is_event=True)

    def operation(self, method: str, path: str, found: Document, *, is_event: bool = False) -> Operation:
        security = found.get("security", [])
        return Operation(
            name=found["operationId"],
            method=method.upper(),
            path=path,
            summary=found.get("summary", path),
            about=render_markdown(found.get("description", "")),
            scopes=tuple(scope for each in security for scope in each.get("bearer", ())),
            is_open=not security or {} in security,
            parameters=[self.parameter(self.resolve(each)) for each in found.get("parameters", ())],
            bodies=list(self.bodies(self.resolve(found.get("requestBody", {})))),
            responses=[self.response(status, self.resolve(each)) for status, each in found["responses"].items()],
            is_event=is_event,
        )

    def parameter(self, found: Document) -> Field:
        schema = self.resolve(found["schema"])
        return self.field(
            found["name"],
            schema,
            is_required=bool(found.get("required")),
            place=found["in"],
            about=found.get("description", ""),
        )

    def response(self, status: str, found: Document) -> Response:
        headers = [
            self.parameter({"name": name, "in": "header", **each}) for name, each in found.get("headers", {}).items()
        ]
        # All errors have the same body: the overview describes it.
        bodies = [] if status >= "400" else list(self.bodies(found))
        return Response(
            status=status, about=render_markdown(found.get("description", "")), headers=headers, bodies=bodies
        )

    def bodies(self, found: Document) -> Iterator[Body]:
        for media_type, content in found.get("content", {}).items():
            schema = self.resolve(content.get("schema", {}))
            examples = content.get("examples", {})
            yield Body(
                media_type=media_type,
                variants=list(self.variants(schema)),
                examples=[(name, self.example(each)) for name, each in examples.items() if "value" in each],
            )

    def example(self, found: Document) -> str:
        value = found["value"]
        text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
        return text if len(text) <= MAX_EXAMPLE else f"{text[:MAX_EXAMPLE]} …"

    def variants(self, schema: Document) -> Iterator[tuple[str, list[Field]]]:
        """Yield the alternatives of a body with their fields."""
        choices = schema.get("oneOf") or schema.get("anyOf") or [schema]
        for each in choices:
            name = each.get("$ref", "").rpartition("/")[2] if len(choices) > 1 else ""
            if fields := list(self.fields(self.resolve(each), 0)):
                yield name, fields

    def fields(self, schema: Document, level: int) -> Iterator[Field]:
        found = self.object_of(schema)
        if level == MAX_LEVELS or found is None:
            return
        for name, member in found.get("properties", {}).items():
            resolved = self.resolve(member)
            yield self.field(name, resolved, is_required=name in found.get("required", ()), level=level)
            yield from self.fields(resolved, level + 1)

    def object_of(self, schema: Document) -> Document | None:
        """Return the object schema in a schema: itself, the items of a list, or the only alternative to null."""
        if "properties" in schema:
            return schema
        if "items" in schema:
            return self.object_of(self.resolve(schema["items"]))
        choices = [each for each in schema.get("oneOf") or schema.get("anyOf") or () if each.get("type") != "null"]
        return self.object_of(self.resolve(choices[0])) if len(choices) == 1 else None

    def field(
        self, name: str, schema: Document, *, is_required: bool, level: int = 0, place: str = "", about: str = ""
    ) -> Field:
        values = schema.get("enum") or self.resolve(schema.get("items", {})).get("enum") or ()
        return Field(
            name=name,
            place=place,
            kind=self.kind(schema),
            is_required=is_required,
            about=render_markdown(about or schema.get("description", "")),
            level=level,
            default=json.dumps(schema["default"]) if "default" in schema else "",
            values=tuple(map(str, values)),
        )

    def kind(self, schema: Document) -> str:
        kinds = schema.get("type", "")
        if isinstance(kinds, list):
            return " or ".join(kinds)
        if kinds == "array":
            return f"list of {self.kind(self.resolve(schema.get('items', {}))) or 'any'}"
        choices = schema.get("oneOf") or schema.get("anyOf") or ()
        found = [self.kind(self.resolve(each)) for each in choices]
        shown = kinds or " or ".join(dict.fromkeys(filter(None, found)))
        return f"{shown} ({schema['format']})" if shown and schema.get("format") in SHOWN_FORMATS else shown

    def resolve(self, found: Document) -> Document:
        """Return the target of a `$ref`, with the description that is next to the `$ref`."""
        while "$ref" in found:
            target: Any = self.document
            for part in found["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            found = {**target, **{name: value for name, value in found.items() if name == "description"}}
        if len(found.get("allOf", ())) == 1:
            return {
                **self.resolve(found["allOf"][0]),
                **{name: each for name, each in found.items() if name != "allOf"},
            }
        return found


SHOWN_FORMATS = ("date", "date-time", "uuid", "uri", "binary", "uri-reference")
