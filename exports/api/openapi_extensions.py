"""Extensions of drf-spectacular for exports: alternative request schemas, and camel-case path parameters."""

from collections.abc import Collection
from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent, camelize_operation
from drf_spectacular.utils import Direction

from config.platform import built_in_datasets
from config.platform.built_in_datasets import BuiltInDataset
from config.platform.http.openapi.autoschema import StrictSchema


class ExportRequestExtension(StrictSchema):  # type: ignore[no-untyped-call]
    """Schema of export requests: either `items` or `filters`, or the request for a built-in dataset, as alternatives.

    A serializer cannot express alternatives, and client generators ignore conditional schemas.
    """

    target_class = "exports.api.serializers.ExportRequestSerializer"
    match_subclasses = False
    priority = 1

    def map_serializer(self, auto_schema: AutoSchema, direction: Direction) -> dict[str, Any]:
        whole = super().map_serializer(auto_schema, direction)
        items = whole["properties"]["items"]
        items["items"] = register(auto_schema, "ExportItem", items["items"])
        either = [
            register(auto_schema, "ExportByItems", with_required(whole, "items", without={"filters"})),
            register(auto_schema, "ExportByFilters", with_required(whole, "filters", without={"items"})),
            *(built_in(auto_schema, whole, each) for each in built_in_datasets.all_by_name().values()),
        ]
        return {"oneOf": either, "description": whole["description"]}


def built_in(auto_schema: AutoSchema, whole: dict[str, Any], dataset: BuiltInDataset) -> dict[str, Any]:
    """Register the component of a request for a built-in dataset, and return the reference to it."""
    shape = with_required(whole, "filters", without={"items", "columns", "reuse", "allowDegraded"})
    filters = auto_schema.resolve_serializer(dataset.filters(), "request")
    shape["properties"] |= {
        "dataset": {"type": "string", "enum": [dataset.name]},
        "filters": filters.ref,
        "format": {"type": "string", "enum": list(dataset.formats), "default": dataset.formats[0]},
    }
    shape["description"] = f"{dataset.description} in one file. There are no keys: `filters` select the rows."
    return register(auto_schema, f"ExportOf{dataset.name.capitalize()}", shape)


def with_required(whole: dict[str, Any], name: str, *, without: Collection[str]) -> dict[str, Any]:
    """Return the schema with the required property `name`, and without some other properties."""
    properties = {each: shape for each, shape in whole["properties"].items() if each not in without}
    return {**whole, "properties": properties, "required": [*whole["required"], name]}


def register(auto_schema: AutoSchema, name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Register a component that has no serializer, and return the reference to it."""
    component = ResolvedComponent(name=name, type=ResolvedComponent.SCHEMA, schema=schema, object=name)  # type: ignore[no-untyped-call]
    auto_schema.registry.register_on_missing(component)
    reference: dict[str, Any] = component.ref
    return reference


def camel_case_parameters(result: dict[str, Any], **_later: Any) -> dict[str, Any]:
    """Rename path parameters to camel case, which the bodies of these operations use. A postprocessing hook."""
    paths = {}
    for path, operations in result["paths"].items():
        named = path
        if path.startswith(("/exports/", "/tokens/")):
            for operation in operations.values():
                named, _ = camelize_operation(path, operation)  # type: ignore[no-untyped-call]
        paths[named] = operations
    return {**result, "paths": paths}
