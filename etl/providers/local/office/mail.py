"""EML: the sender, recipients, date, and subject of a message, its text, and the names of its attachments."""

from collections.abc import Iterator
from email import errors, policy
from email.message import EmailMessage, MIMEPart
from email.parser import BytesParser
from typing import Any, BinaryIO

from etl.core.errors import FileCorrupt, TooManyParts
from etl.providers.local.office import markdown, web
from etl.providers.local.office.bounds import TextBudget
from etl.providers.local.office.pages import ATTACHMENT, OfficePage

HEADERS = ("From", "To", "Cc", "Date", "Subject")
# Messages that are attached to messages, and parts of one message.
MAX_DEPTH, MAX_PARTS = 5, 1_000
ENCRYPTED = frozenset({"multipart/encrypted", "application/pkcs7-mime", "application/x-pkcs7-mime"})


def page(file: BinaryIO, budget: TextBudget) -> OfficePage:
    """Return a message, which is one page. Raises FileCorrupt and FileTooLarge."""
    try:
        message: Any = BytesParser(policy=policy.default).parse(file)
        reader = MailReader(budget)
        text = markdown.join(reader.blocks(message, 0))
    except (errors.MessageError, ValueError, RecursionError):
        raise FileCorrupt from None
    return OfficePage(text=text, warnings=frozenset(reader.warnings))


class MailReader:
    def __init__(self, budget: TextBudget) -> None:
        self.budget = budget
        self.parts = 0
        self.warnings: set[str] = set()

    def blocks(self, message: EmailMessage, depth: int) -> Iterator[str]:
        self.count()
        yield from (f"{name}: {self.budget.spend(text)}" for name in HEADERS if (text := header(message, name)))
        body = message.get_body(("html", "plain"))
        if body is not None:
            yield self.text(body)
        for part in message.iter_attachments() if message.is_multipart() or body is None else ():
            self.count()
            if part.get_content_type() == "message/rfc822" and depth < MAX_DEPTH:
                yield markdown.heading(2, "Attached message")
                yield from self.blocks(part.get_content(), depth + 1)
            elif part is not body and not part.is_multipart():
                yield self.attachment(part)

    def text(self, part: MIMEPart) -> str:
        try:
            content = part.get_content()
        except (LookupError, ValueError, KeyError):  # an unknown character set
            content = (part.get_payload(decode=True) or b"").decode("utf-8", "replace")  # type: ignore[union-attr]
        if part.get_content_type() != "text/html":
            return self.budget.spend(str(content))
        found = web.page(str(content), self.budget)
        self.warnings |= found.warnings
        return found.text

    def attachment(self, part: EmailMessage) -> str:
        self.warnings.add(ATTACHMENT)
        size = len(part.get_payload(decode=True) or b"")
        name = markdown.one_line(part.get_filename() or part.get_content_type())
        return self.budget.spend(f"Attachment: {name} ({size:,} bytes)")

    def count(self) -> None:
        self.parts += 1
        if self.parts > MAX_PARTS:
            raise TooManyParts.of(self.parts, MAX_PARTS)


def header(message: EmailMessage, name: str) -> str:
    try:
        return markdown.one_line(str(message.get(name, "")))
    except (errors.MessageError, ValueError, IndexError, AttributeError):  # a malformed header
        return ""
