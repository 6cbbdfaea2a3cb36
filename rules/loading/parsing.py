"""Parser of rule files. Each file in a folder defines one system rule, which the file's name identifies."""

import math
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
import yaml

from config.platform import exact_json
from config.platform.http import parsers
from config.platform.http.problems import BadInput, InputError
from rules.library.serializers import RuleSerializer
from rules.schema import json_schema
from rules.schema.keywords import unknown_keywords

JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
SUFFIXES = (".json", ".yaml", ".yml")
SLUG = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
MAX_BYTES = 1024 * 1024
MAX_UNKNOWN = 20  # number of unknown keywords that are reported


@dataclass(frozen=True, slots=True)
class FileError:
    """An error in a rule file. `pointer` is its location in the file."""

    file: str
    pointer: str
    detail: str

    def __str__(self) -> str:
        return f"{self.file}: {self.pointer or '(whole file)'}: {self.detail}"


@dataclass(slots=True)
class Folder:
    """The rules of the valid files by slug, the errors of the others, and the slugs of all files."""

    rules: dict[str, dict[str, Any]] = field(default_factory=dict)
    slugs: set[str] = field(default_factory=set)
    errors: list[FileError] = field(default_factory=list)


def read(path: Path) -> Folder | None:
    """Read the rule files in a folder, except hidden ones. Return None if the folder does not exist."""
    try:
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and not file.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return None
    folder = Folder()
    for file in files:
        add_file(folder, file)
    return folder


def add_file(folder: Folder, file: Path) -> None:
    slug = file.stem
    try:
        if not SLUG.fullmatch(slug):
            raise invalid("The name must have 1 to 64 characters of a-z, 0-9, -, and _.")
        if slug in folder.slugs:
            raise invalid("Another file has the same name.")
        folder.slugs.add(slug)
        status = file.stat()
        folder.rules[slug] = dict(parse(file, status.st_mtime_ns, status.st_size))
    except BadInput as bad:
        folder.errors += [FileError(file.name, error.pointer, error.detail) for error in bad.errors]
    except OSError as error:
        folder.errors.append(FileError(file.name, "", f"The file cannot be read: {error.strerror}."))


@lru_cache(maxsize=64)  # the files are read every minute; a changed file has another modification time
def parse(file: Path, _modified: int, size: int) -> dict[str, Any]:
    if size > MAX_BYTES:
        raise invalid(f"The file is larger than {MAX_BYTES} bytes.")
    body = file.read_bytes()
    document = parsers.load(body if file.suffix == ".json" else json_of(body), is_exact=True)
    if not isinstance(document, dict):
        raise invalid("Must be an object.")
    values = RuleSerializer.read(document)
    if unknown := list(unknown_keywords(values["json_schema"] or {})):
        raise BadInput(
            *(replace(each, pointer=json_schema.SCHEMA_POINTER + each.pointer) for each in unknown[:MAX_UNKNOWN])
        )
    return values


class ExactLoader(yaml.CSafeLoader):
    """Safe YAML loader that keeps all digits of numbers."""

    def construct_number(self, node: yaml.ScalarNode) -> Any:
        """Return a number. Raises ValueError for a number that JSON cannot represent, such as `.inf`."""
        if JSON_NUMBER.fullmatch(node.value):
            return exact_json.loads(node.value)
        is_float = node.tag.endswith(":float")
        value = self.construct_yaml_float(node) if is_float else self.construct_yaml_int(node)
        if not math.isfinite(value):
            raise ValueError(node.value)
        return value


for kind in ("int", "float"):
    ExactLoader.add_constructor(f"tag:yaml.org,2002:{kind}", ExactLoader.construct_number)


def json_of(body: bytes) -> bytes:
    """Convert YAML to JSON, so that the same checks apply to both. Raises BadInput."""
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(body, Loader=yaml.CSafeLoader)):
            raise invalid("YAML aliases are not allowed: they can expand to gigabytes.")
        options = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATETIME
        return orjson.dumps(yaml.load(body, Loader=ExactLoader), default=exact_json.serialize_number, option=options)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise invalid(f"Invalid YAML in line {mark.line + 1}." if mark else "Invalid YAML.") from None
    except (yaml.YAMLError, UnicodeError):
        raise invalid("Invalid YAML, or not in UTF-8.") from None
    # The constructors of PyYAML raise many errors for values that do not match their tag, such as `!!bool maybe`.
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError):
        raise invalid("Contains a value that JSON does not support, such as a date without quotation marks.") from None


def invalid(detail: str) -> BadInput:
    return BadInput(InputError(pointer="", code="invalid", detail=detail))
