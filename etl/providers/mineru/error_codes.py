"""Mapping of server error codes and messages to the errors of this project.

MinerU 4.0 reports nearly every failure as `parse_failed`. 3.x and the hosted service send only a message. If the code
is not specific, the message is searched for signs of permanent failures. Other failures are retried, because the server
may have caused them.
"""

import re

import structlog

from etl.core.errors import (
    EmptyDocument,
    EtlError,
    FileCorrupt,
    FileEncrypted,
    FileTooLarge,
    OcrFailed,
    OcrRefused,
    ProviderUnavailable,
    TooManyPages,
    UnsupportedFormat,
)

log = structlog.get_logger(__name__)

CODES: dict[str, type[EtlError]] = {
    "file_type_unsupported": UnsupportedFormat,
    "remote_unsupported_for_file_type": UnsupportedFormat,
    "tier_unsupported_for_file_type": UnsupportedFormat,
    "multi_page_image_not_supported": UnsupportedFormat,
    "file_encrypted": FileEncrypted,
    "file_corrupted": FileCorrupt,
    "file_too_large": FileTooLarge,
    "parse_empty": EmptyDocument,
    "page_range_invalid": OcrRefused,
    # Transport errors, which are not the document's fault.
    "file_hash_mismatch": OcrFailed,
    "file_not_found": OcrFailed,
}
MESSAGES: tuple[tuple[str, type[EtlError]], ...] = (
    (
        r"unsupported file type|file type (is )?not supported|unsupported (file )?format|文件格式不支持",
        UnsupportedFormat,
    ),
    (r"password|encrypted|加密|密码", FileEncrypted),
    (r"pages? .{0,40}(exceed|limit)|(exceed|limit).{0,40} pages?|页数超", TooManyPages),
    (r"(file|document) .{0,20}(too large|exceeds)|文件大小超", FileTooLarge),
    (r"data format error|not a (valid )?(pdf|zip)|file is (damaged|corrupt)|empty file", FileCorrupt),
    (r"tier '[a-z-]+' not available", ProviderUnavailable),  # the server was restarted with fewer tiers
)
MAX_MESSAGE = 2_000  # maximum length of a message that is searched
CODE = re.compile(r"-?[A-Za-z0-9_]{1,40}")


def error_for(code: str, message: str, *, otherwise: type[EtlError] = OcrFailed) -> EtlError:
    """Return the error for a server's code and message."""
    log.info("mineru_refused", code=code if CODE.fullmatch(code) else "")
    return error_class(code, message[:MAX_MESSAGE], otherwise)()


def error_class(code: str, message: str, otherwise: type[EtlError]) -> type[EtlError]:
    if code in CODES:
        return CODES[code]
    for pattern, error in MESSAGES:
        if re.search(pattern, message, re.IGNORECASE):
            return error
    return OcrRefused if code.startswith("file_") else otherwise
