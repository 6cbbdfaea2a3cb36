"""Rules as files: what a folder of them says. One file is one system rule, and the file's name is what it goes by."""

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from config.platform.http import parsers
from config.platform.http.problems import BadInput, InputError
from rules.library.serializers import RuleSerializer

SUFFIXES = (".json", ".yaml", ".yml")
SLUG = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Flaw:
    """What is wrong with a file, and where in it."""

    file: str
    pointer: str
    detail: str

    def __str__(self) -> str:
        return f"{self.file}: {self.pointer or '(whole file)'}: {self.detail}"


@dataclass(slots=True)
class Folder:
    """What the good files say, by slug; and what is wrong with the others. `slugs` are those of all files."""

    says: dict[str, dict[str, Any]] = field(default_factory=dict)
    slugs: set[str] = field(default_factory=set)
    flaws: list[Flaw] = field(default_factory=list)


def read(path: Path) -> Folder | None:
    """Read a folder, not those inside it; None if it is not there. Hidden files are left alone, as are other kinds."""
    try:
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and not file.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return None
    folder = Folder()
    for file in files:
        take(folder, file)
    return folder


def take(folder: Folder, file: Path) -> None:
    slug = file.stem
    try:
        if not SLUG.fullmatch(slug):
            raise unusable("The name must be of a-z, 0-9, - and _, 64 characters at most.")
        if slug in folder.slugs:
            raise unusable("There is another file of this name.")
        folder.slugs.add(slug)
        about = file.stat()
        folder.says[slug] = dict(says_of(file, about.st_mtime_ns, about.st_size))
    except BadInput as bad:
        folder.flaws += [Flaw(file.name, error.pointer, error.detail) for error in bad.errors]
    except OSError as error:
        folder.flaws.append(Flaw(file.name, "", f"Cannot be read: {error.strerror}."))


@lru_cache(maxsize=64)  # by what changes when the file does: they are looked at every minute
def says_of(file: Path, _changed: int, size: int) -> dict[str, Any]:
    if size > MAX_BYTES:
        raise unusable(f"Is larger than {MAX_BYTES} bytes.")
    body = file.read_bytes()
    document = parsers.load(body if file.suffix == ".json" else json_of(body))
    if not isinstance(document, dict):
        raise unusable("Must be an object.")
    return RuleSerializer.read(document)


def json_of(body: bytes) -> bytes:
    """Return YAML as JSON: the same checks are for both. Raises BadInput for what JSON has no word for."""
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(body, Loader=yaml.CSafeLoader)):
            raise unusable("Must not have aliases: a few lines of them can mean gigabytes.")
        return json.dumps(yaml.load(body, Loader=yaml.CSafeLoader), allow_nan=False).encode()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise unusable(f"Is not YAML: line {mark.line + 1}." if mark else "Is not YAML.") from None
    except (yaml.YAMLError, UnicodeError):
        raise unusable("Is not YAML in UTF-8.") from None
    except (TypeError, ValueError, RecursionError):
        raise unusable("Holds what is not JSON, such as a date without quotation marks.") from None


def unusable(detail: str) -> BadInput:
    return BadInput(InputError(pointer="", code="invalid", detail=detail))
