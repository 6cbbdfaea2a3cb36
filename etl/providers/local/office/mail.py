"""Email messages (EML): headers, text, and the names of attachments. In a mailbox file, each message is a page."""

import re
from collections.abc import Iterator
from email import errors, policy
from email.message import EmailMessage, MIMEPart
from email.parser import BytesParser
from typing import Any

from etl.core import encodings
from etl.core.errors import FileCorrupt, TooManyParts
from etl.providers.local.office import markdown, web
from etl.providers.local.office.bounds import TextBudget
from etl.providers.local.office.pages import ATTACHMENT, OfficePage

HEADERS = ("From", "To", "Cc", "Date", "Subject")
# Maximum nesting of attached messages, and maximum parts of one message.
MAX_DEPTH, MAX_PARTS = 5, 1_000
TEXTS = ("text/plain", "text/html")  # in order of preference, the last one is best
# The line before each message of a mailbox file (RFC 4155). Headers follow it.
MAILBOX = b"From "
ENVELOPE = re.compile(rb"(?:(?<=\n\n)|(?<=\n\r\n))(?=From [^\n]{1,200}\d\d:\d\d[^\n]{1,100}\n[A-Za-z-]{1,60}:)")


class Mailbox:
    """A message, or the messages of a mailbox file."""

    def __init__(self, content: bytes, budget: TextBudget) -> None:
        if content.startswith(encodings.BYTE_ORDER_MARKS) or b"\0" in content[:2]:  # UTF-16
            content = encodings.decode(content).encode()
        self.messages = ENVELOPE.split(content) if content.startswith(MAILBOX) else [content]
        self.budget = budget

    def __len__(self) -> int:
        return len(self.messages)

    def page(self, index: int) -> OfficePage:
        return page(self.messages[index], self.budget)


def page(content: bytes, budget: TextBudget) -> OfficePage:
    """Read a message as one page. Raises FileCorrupt and FileTooLarge."""
    try:
        message: Any = BytesParser(policy=policy.default).parsebytes(content)
        if (parts := sum(1 for _ in message.walk())) > MAX_PARTS:
            raise TooManyParts.of(parts, MAX_PARTS)
        reader = MailReader(budget)
        text = markdown.join(reader.blocks(message, 0))
    except (errors.MessageError, ValueError, RecursionError):
        raise FileCorrupt from None
    return OfficePage(text=text, warnings=frozenset(reader.warnings))


class MailReader:
    def __init__(self, budget: TextBudget) -> None:
        self.budget = budget
        self.warnings: set[str] = set()

    def blocks(self, message: EmailMessage, depth: int) -> Iterator[str]:
        yield from (f"{name}: {self.budget.spend(text)}" for name in HEADERS if (text := header(message, name)))
        yield from self.body(message, depth)

    def body(self, part: MIMEPart, depth: int, *, is_shown: bool = True) -> Iterator[str]:
        """Yield the texts and attachments of a part, in order. If `is_shown` is false, yield only attachments."""
        kind = part.get_content_type()
        if part.is_multipart() and kind == "message/rfc822" and depth < MAX_DEPTH:
            yield markdown.heading(2, "Attached message")
            yield from self.blocks(part.get_content(), depth + 1)
        elif part.is_multipart() and part.get_content_maintype() == "multipart":
            parts = list(part.iter_parts())
            best = max(reversed(parts), key=rank, default=None) if kind == "multipart/alternative" else None
            for each in parts:
                yield from self.body(each, depth, is_shown=is_shown and best in {None, each})
        elif not is_text(part):
            yield self.attachment(part)
        elif is_shown:
            yield self.text(part)

    def text(self, part: MIMEPart) -> str:
        try:
            content = part.get_content()
        except (LookupError, ValueError):  # an unknown character set
            content = (part.get_payload(decode=True) or b"").decode("utf-8", "replace")  # type: ignore[union-attr]
        if part.get_content_type() != "text/html":
            return self.budget.spend(str(content))
        found = web.page(str(content), self.budget)
        self.warnings |= found.warnings
        return found.text

    def attachment(self, part: MIMEPart) -> str:
        self.warnings.add(ATTACHMENT)
        content: Any = b"".join(map(bytes, part.iter_parts())) or part.get_payload(decode=True) or b""
        name = markdown.one_line(part.get_filename() or part.get_content_type())
        return self.budget.spend(f"Attachment: {name} ({len(content):,} bytes)")


def is_text(part: MIMEPart) -> bool:
    """Return whether a part is displayed with the message (RFC 2183, section 2.10)."""
    # The content of a damaged multipart type without parts is text.
    return part.get_content_disposition() in {None, "inline"} and part.get_content_maintype() in {"text", "multipart"}


def rank(alternative: MIMEPart) -> int:
    """Return the rank of an alternative by its best text format (RFC 2046, section 5.1.4)."""
    kinds = [each.get_content_type() for each in alternative.walk() if is_text(each)]
    return max((TEXTS.index(kind) for kind in kinds if kind in TEXTS), default=-1)


def header(message: EmailMessage, name: str) -> str:
    try:
        return markdown.one_line(str(message.get(name, "")))
    except (errors.MessageError, ValueError, IndexError, AttributeError):  # a malformed header
        return ""
