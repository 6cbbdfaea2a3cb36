"""Spelling and grammar check of all text: `python -m tests.docs.prose`, part of `make check`.

Harper checks documents, docstrings, comments, and the text of templates. typos checks every tracked file and is
configured in pyproject.toml. Correct words that Harper does not know are in `docs/dictionary.txt`.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
DICTIONARY = PROJECT / "docs" / "dictionary.txt"
CODE = ("config", "exports", "etl", "rules", "docs/clients")
IGNORED_RULES = {
    "UseTitleCase": "headings are in sentence case",
    "SentenceCapitalization": "cells of tables and items of lists are not sentences",
    "ExpandTimeShorthands": "ms and s are units",
    "ExpandMemoryShorthands": "MiB and GB are units",
    "ExpandMinimum": "min is a unit and a function",
    "ExpandStandardInputAndOutput": "stdin and stderr are technical terms",
    "ExpandControl": "Ctrl is the label of the key",
    "SplitWords": "prefetch and runbook are technical terms",
    "MergeWords": "it joins code with the word after it",
    "DisjointPrefixes": "post-processing is the spelling in all texts",
    "Dashes": "options of commands start with two hyphens",
    "NumericRangeEnDash": "hyphens in code and dates are not ranges",
    "OrthographicConsistency": "POSTs are requests",
    "WrongNegative": "unreferenced files are files without references",
    "LongSentences": "it counts code and tables as words",
    "ExpandConfiguration": "config is a folder",
    "ExpandDirectory": "DIR is a part of setting names",
    "ExpandParameter": "param is a name in code",
    "ExpandArgument": "arg is a name in code",
    "OkToOkay": "ok is a value",
    "UnclosedQuotes": "a quotation mark may be a part of code",
    "CompoundNouns": "lock files and new lines are two words",
    "QuantifierNumeralConflict": "it treats any following number as a count",
    "Spaces": "code is aligned",
    "EllipsisLength": "paths are abbreviated with the character …",
    # False positives in sentences with code in backticks, which is removed.
    "ToTwoToo": "see above",
    "AnA": "see above",
    "MissingDeterminer": "see above",
    "MissingPreposition": "see above",
    "MissingTo": "see above",
    "OneOfTheSingular": "see above",
    "RepeatedWords": "see above",
    "SingleBe": "see above",
    # False positives that confuse nouns and verbs.
    "ItsContraction": "the word after `its` is a noun",
    "MassNouns": "a finding, a middleware, and a binding can be counted",
    "Months": "may is a verb",
    "NounVerbConfusion": "a change takes effect",
    "Overall": "it joins two words of different phrases",
    "CommaFixes": "a comma between two names is code",
    "InflectedVerbAfterTo": "redirects is a noun",
    "PhrasalVerbAsCompoundNoun": "a backup, a startup, and a timeout are nouns",
}
# Identifiers and abbreviations are skipped: they contain a digit, an underscore, or a capital after the first letter.
IDENTIFIER = re.compile(r"[\d_./]|\w[A-Z]|[^\x00-\x7f’‘]")


class Text(HTMLParser):
    """Parser that collects the text of a template, without HTML tags and scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.silent = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.silent += tag in ("script", "style", "svg", "code", "pre")

    def handle_endtag(self, tag: str) -> None:
        self.silent -= tag in ("script", "style", "svg", "code", "pre")

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.parts.append(data)


def text_of(template: str) -> str:
    parser = Text()
    text = re.sub(r"\{#.*?#\}|\{%.*?%\}", " ", re.sub(r"\{\{.*?\}\}", "X", template), flags=re.DOTALL)
    parser.feed(re.sub(r"\s+([,.;:])", r"\1", text))
    return "\n".join(filter(None, (re.sub(r"\s+", " ", part).strip() for part in parser.parts)))


def tracked(*patterns: str) -> list[Path]:
    command = ["git", "ls-files", "-z", "--", *patterns]
    names = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [PROJECT / name for name in names if name and (PROJECT / name).is_file()]


def lint(files: list[Path], folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each finding of Harper with its file."""
    ignored = [word for rule in IGNORED_RULES for word in ("--ignore", rule)]
    command = [str(Path(sys.executable).with_name("harper")), "lint", "--no-color", "--format", "json", *ignored]
    command += ["--user-dict-path", str(DICTIONARY), *map(str, files)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"Harper failed: {done.stderr}")
    for path, each in zip(files, json.loads(done.stdout), strict=True):  # Harper reports names without folders
        assert Path(each["file"]).name == path.name
        for finding in each["lints"]:
            yield str(path), finding


def is_correct_word(finding: dict[str, Any], dictionary: set[str]) -> bool:
    """Return whether a reported spelling error is an identifier, or is in the dictionary in another case."""
    text = finding["matched_text"]
    return finding["rule"] == "SpellCheck" and bool(IDENTIFIER.search(text) or text.lower() in dictionary)


def main() -> int:
    dictionary = set(DICTIONARY.read_text().lower().split())
    code = [path for path in tracked(*(f"{name}/*.py" for name in CODE)) if "migrations" not in path.parts]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = []
        for template in tracked("templates/*.html"):
            texts.append(folder / f"{template.relative_to(PROJECT)}".replace("/", "__").replace(".html", ".md"))
            texts[-1].write_text(text_of(template.read_text()))
        found = 0
        pages = [path for path in tracked("*.md") if "vendor" not in path.parts]
        for path, finding in lint([*pages, *code, *texts], folder):
            if not is_correct_word(finding, dictionary):
                found += 1
                place = path.removeprefix(f"{PROJECT}/").removeprefix(f"{folder}/")
                print(f"{place}:{finding['line']}: {finding['rule']}: {finding['message']} [{finding['matched_text']}]")
    typos = subprocess.run(
        [str(Path(sys.executable).with_name("typos")), "--format", "brief"], cwd=PROJECT, check=False
    )
    return 1 if found or typos.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
