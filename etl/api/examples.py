"""Example requests and responses for the OpenAPI document: an invoice.

`tests/contract/test_document.py` validates each of them against its schema.
"""

from typing import Any

from config.platform.http import sse

MARKDOWN_KEY = "etl/tasks/17/ocr-1/9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08.md"
FILE_KEY = "etl/uploads/4/0197a3c4-6f0e-4f6b-9d3a-2b8f5f0c1d11"
ACCEPTED = {"task_id": 17, "status": "pending", "status_url": "/api/v1/etl/tasks/17"}
CITATIONS = [{"pointer": "/total", "page": 1, "quote": "Total: 118.50", "match": "exact"}]
RUNNING: dict[str, Any] = {
    "task_id": 17,
    "status": "llm_processing",
    "phase": "postprocess",
    "progress": 60,
    "filename": "invoice.pdf",
    "rule_id": 3,
    "rule_version": 2,
    "result": None,
    "error": None,
    "metadata": {
        "attempts": {"ocr": 1, "postprocess": 1},
        "artifact_mineru_markdown_key": MARKDOWN_KEY,
        "provider": "local",
        "provider_task_id": "local-17",
        "ocr": {"pages": 2, "duration_ms": 840, "version": "1.0"},
        "postprocess": {},
        "warnings": [],
    },
    "created_at": "2026-03-01T09:00:00.000000Z",
    "updated_at": "2026-03-01T09:00:02.250000Z",
}
COMPLETED = {
    **RUNNING,
    "status": "completed",
    "progress": 100,
    "result": {
        "markdown_s3_key": MARKDOWN_KEY,
        "provider_task_id": "local-17",
        "metadata": {"pages": 2, "duration_ms": 840, "version": "1.0"},
        "data": {"number": "2026-0042", "total": 118.5},
        "output_s3_key": "etl/tasks/17/result-1/output.json",
        "citations": CITATIONS,
    },
    "metadata": {
        **RUNNING["metadata"],
        "postprocess": {
            "strategy": "direct-json",
            "model": "gpt-oss-20b",
            "usage": {"prompt_tokens": 812, "completion_tokens": 34, "calls": 1},
        },
    },
    "updated_at": "2026-03-01T09:00:04.000000Z",
}
ENCRYPTED = {
    "code": "file_encrypted",
    "stage": "ocr",
    "detail": "The file is encrypted. Remove its password and submit it again.",
    "retryable": False,
}
FAILED = {
    **RUNNING,
    "status": "failed",
    "phase": "ocr",
    "progress": 0,
    "error": ENCRYPTED,
    "metadata": {
        **RUNNING["metadata"],
        "attempts": {"ocr": 1, "postprocess": 0},
        "artifact_mineru_markdown_key": None,
        "provider": None,
        "provider_task_id": None,
        "ocr": {},
    },
}
SUMMARY = {name: value for name, value in RUNNING.items() if name != "result"}
UPLOAD = {"filename": "invoice.pdf", "content_type": "application/pdf", "size": 48213}
PLACE = {
    "file_key": FILE_KEY,
    "upload_url": f"https://storage.example/sluice/{FILE_KEY}?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=…",
    "method": "PUT",
    "headers": {"Content-Type": "application/pdf", "x-amz-meta-filename": "aW52b2ljZS5wZGY="},
    "expires_at": "2026-03-01T09:15:00.000000Z",
}
MARKDOWN = (
    "<!-- page: 1 -->\n# Invoice 2026-0042\n\n| Item | Price |\n| --- | ---: |\n| Paper | 118.50 |\n\nTotal: 118.50\n"
)
TRIED = {
    "ok": True,
    "result": {
        "markdown_s3_key": None,
        "provider_task_id": None,
        "metadata": {"pages": 1, "duration_ms": 0, "version": ""},
        "data": {"plate": "B-XY 123", "amount": 4.5},
        "output_s3_key": None,
        "citations": [{"pointer": "/amount", "page": 1, "quote": "Paid: 4.50 EUR", "match": "exact"}],
    },
    "usage": {"prompt_tokens": 412, "completion_tokens": 64, "calls": 1},
    "warnings": [],
}
NOT_TRIED = {
    "ok": False,
    "error": {
        "code": "llm_unavailable",
        "stage": "postprocess",
        "detail": "The language model is unreachable, overloaded or too slow to respond.",
        "retryable": True,
    },
    "usage": {"prompt_tokens": 0, "completion_tokens": 0, "calls": 0},
    "warnings": [],
}


PROGRESS = {"status": "llm_processing", "phase": "postprocess", "progress": 80}
END = {**PROGRESS, "status": "completed", "progress": 100, "error": None, "at": COMPLETED["updated_at"]}
STREAM = b"".join(
    [
        sse.RETRY,
        sse.frame("snapshot", RUNNING, number=1000004),
        sse.frame("progress", PROGRESS, number=1000005),
        sse.frame("status", END, number=1999999),
    ]
).decode()
