"""Example requests and responses for the OpenAPI document: an invoice.

`tests/contract/test_document.py` validates each of them against its schema.
"""

from typing import Any

from config.platform.http import sse
from etl.core.errors import FileEncrypted, LlmUnavailable, explain
from etl.core.states import Stage


def without_result(task: dict[str, Any]) -> dict[str, Any]:
    """Return a task as lists and webhooks contain it."""
    return {name: value for name, value in task.items() if name not in ("result", "previous_result")}


FOLDER = "etl/tasks/17-0b6f2a54-7d1c-4c8e-9a53-2f4f1f6f7c10"
MARKDOWN_KEY = f"{FOLDER}/ocr-1/9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08.md"
FILE_KEY = "etl/uploads/4/0197a3c4-6f0e-4f6b-9d3a-2b8f5f0c1d11"
ACCEPTED = {"task_id": 17, "status": "pending", "status_url": "/api/v1/etl/tasks/17", "duplicate_of": None}
CITATIONS = [
    {"pointer": "/number", "page": 1, "bbox": None, "quote": "Invoice 2026-0042", "match": "exact"},
    {"pointer": "/total", "page": 2, "bbox": None, "quote": "Total: 118.50", "match": "normalized"},
]
LIMITS = {
    "documents_per_day": {"limit": 5000, "used": 12, "remaining": 4988, "resets_at": "2026-03-02T00:00:00Z"},
    "bytes_per_day": {
        "limit": 5368709120,
        "used": 5311017,
        "remaining": 5363398103,
        "resets_at": "2026-03-02T00:00:00Z",
    },
    "rule_versions_per_day": {"limit": 500, "used": 4, "remaining": 496, "resets_at": "2026-03-02T00:00:00Z"},
    "rule_tests_per_day": {"limit": 500, "used": 12, "remaining": 488, "resets_at": "2026-03-02T00:00:00Z"},
    "tokens_per_day": {
        "limit": 2000000,
        "used": 50114,
        "remaining": 1949886,
        "resets_at": "2026-03-02T00:00:00Z",
    },
    "rule_tokens_per_day": [
        {
            "rule_id": 3,
            "limit": 500000,
            "used": 48211,
            "remaining": 451789,
            "resets_at": "2026-03-02T00:00:00Z",
        }
    ],
    "open_tasks": {"limit": 1000, "used": 3, "remaining": 997},
    "max_file_bytes": 52428800,
    "max_batch": 1000,
    "max_batch_bytes": 104857600,
    "inbox": "etl/inbox/17/",
    "max_pages": 500,
    "rate": "1200/min",
}
LAYOUT: dict[str, Any] = {
    "pages": [
        {
            "page": 1,
            "width": 595.3,
            "height": 841.9,
            "rotation": 0,
            "blocks": [
                {"id": "1-1", "kind": "title", "bbox": [56.7, 70.1, 238.4, 92.6], "text": "# Invoice 2026-0042"},
                {"id": "1-2", "kind": "text", "bbox": [56.7, 110.0, 301.2, 122.3], "text": "Total: 118.50"},
            ],
        }
    ]
}
RUNNING: dict[str, Any] = {
    "task_id": 17,
    "batch_id": None,
    "status": "llm_processing",
    "phase": "postprocess",
    "progress": 60,
    "waiting": False,
    "filename": "invoice.pdf",
    "rule_id": 3,
    "rule_version": 2,
    "approved_at": None,
    "approved_by": None,
    "corrected": False,
    "duplicate_of": None,
    "result": None,
    "previous_result": None,
    "error": None,
    "einvoice": {"syntax": "cii", "profile": "EN 16931", "valid": True, "errors": []},
    "metadata": {
        "attempts": {"ocr": 1, "postprocess": 1},
        "artifact_mineru_markdown_key": MARKDOWN_KEY,
        "provider": "local",
        "provider_task_id": "local-17",
        "ocr": {"pages": 2, "duration_ms": 840, "version": "1.0"},
        "postprocess": {},
        "warnings": [],
        "failed_attempts": [],
    },
    "created_at": "2026-03-01T09:00:00.000000Z",
    "updated_at": "2026-03-01T09:00:02.250000Z",
}
COMPLETED: dict[str, Any] = {
    **RUNNING,
    "status": "completed",
    "progress": 100,
    "result": {
        "markdown_s3_key": MARKDOWN_KEY,
        "provider_task_id": "local-17",
        "metadata": {"pages": 2, "duration_ms": 840, "version": "1.0"},
        "data": {"number": "2026-0042", "total": 118.5},
        "output_s3_key": f"{FOLDER}/result-1/output.json",
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
FAILED = {
    **RUNNING,
    "status": "failed",
    "phase": "ocr",
    "progress": 0,
    "error": explain(FileEncrypted(), stage=Stage.OCR.value),
    "einvoice": None,
    "metadata": {
        **RUNNING["metadata"],
        "attempts": {"ocr": 1, "postprocess": 0},
        "artifact_mineru_markdown_key": None,
        "provider": None,
        "provider_task_id": None,
        "ocr": {},
    },
}
CORRECTED = {
    **COMPLETED["result"],
    "data": {"number": "2026-0042", "total": 118.50},
    "citations": [
        CITATIONS[0],
        {"pointer": "/total", "page": None, "bbox": None, "quote": None, "match": "corrected"},
    ],
}
APPROVED = {
    **without_result(COMPLETED),
    "approved_at": "2026-03-01T10:00:00.000000Z",
    "approved_by": "reviewer",
    "corrected": True,
}
CORRECTION = {
    "kind": "corrected",
    "at": "2026-03-01T09:58:00.000000Z",
    "by": "reviewer",
    "run": 1,
    "correction": 1,
    "pointer": "/total",
    "change": {"before": 11.85, "after": 118.50},
}

SUMMARY = without_result(RUNNING)
REFUSED = [{"filename": "2026/photo.heic", "code": "unsupported_format"}]
ACCEPTED_BATCH = {"batch_id": 5, "status_url": "/api/v1/etl/batches/5", "total": 240, "refused": REFUSED}
BATCH = {
    "batch_id": 5,
    "name": "Invoices of March",
    "status": "running",
    "total": 240,
    "completed": 180,
    "failed": 2,
    "cancelled": 0,
    "deleted": 0,
    "rule_id": 3,
    "rule_version": 2,
    "created_at": "2026-03-01T09:00:00.000000Z",
    "updated_at": "2026-03-01T09:00:00.000000Z",
}
ENDED_BATCH = {
    **BATCH,
    "status": "completed_with_errors",
    "completed": 238,
    "updated_at": "2026-03-01T09:10:00.000000Z",
}
RESULT_LINES = (
    '{"task_id":17,"filename":"invoice.pdf","status":"completed","error":null,'
    '"data":{"number":"2026-0042","total":118.50}}\n'
    '{"task_id":18,"filename":"scan.pdf","status":"failed","error":"file_encrypted","data":null}\n'
)
RESULT_CSV = (
    "task_id,filename,status,error,number,total\n17,invoice.pdf,completed,,2026-0042,118.50\n"
    "18,scan.pdf,failed,file_encrypted,,\n"
)
UPLOAD = {"filename": "invoice.pdf", "content_type": "application/pdf", "size": 48213}
UPLOAD_URL = {
    "file_key": FILE_KEY,
    "upload_url": f"https://storage.example/sluice/{FILE_KEY}?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=5d41402a",
    "method": "PUT",
    "headers": {"Content-Type": "application/pdf", "x-amz-meta-filename": "aW52b2ljZS5wZGY="},
    "expires_at": "2026-03-01T09:15:00.000000Z",
}
MARKDOWN = (
    "<!-- page: 1 -->\n# Invoice 2026-0042\n\n| Item | Price |\n| --- | ---: |\n| Paper | 118.50 |\n\nTotal: 118.50\n"
)
SPENT = {"calls": 12, "prompt_tokens": 48211, "completion_tokens": 1903}
USAGE = {"total": SPENT, "days": [{"date": "2026-03-01", **SPENT}]}
TRIAL_PASSED = {
    "ok": True,
    "result": {
        "markdown_s3_key": None,
        "provider_task_id": None,
        "metadata": {"pages": 1, "duration_ms": 0, "version": ""},
        "data": {"plate": "B-XY 123", "amount": 4.5},
        "output_s3_key": None,
        "citations": [
            {"pointer": "/plate", "page": 1, "bbox": None, "quote": "B-XY 123", "match": "exact"},
            {"pointer": "/amount", "page": 1, "bbox": None, "quote": "Paid: 4.50 EUR", "match": "normalized"},
        ],
    },
    "usage": {"prompt_tokens": 412, "completion_tokens": 64, "calls": 1},
    "warnings": [],
}
TRIAL_FAILED = {
    "ok": False,
    "error": explain(LlmUnavailable(), stage=Stage.POSTPROCESS.value),
    "usage": {"prompt_tokens": 0, "completion_tokens": 0, "calls": 0},
    "warnings": [],
}
PROGRESS = {"status": "llm_processing", "phase": "postprocess", "progress": 80, "waiting": False}
END = {**PROGRESS, "status": "completed", "progress": 100, "error": None, "at": COMPLETED["updated_at"]}
STREAM = b"".join(
    [
        sse.RETRY,
        sse.frame("snapshot", RUNNING, number=1000004),
        sse.frame("progress", PROGRESS, number=1000005),
        sse.frame("status", END, number=1999999),
    ]
).decode()
