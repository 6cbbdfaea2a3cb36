"""Example requests and responses for the OpenAPI document: an export of flights and its webhook.

`tests/contract/test_document.py` validates each example against its schema.
"""

from typing import Any

from config.platform.http import sse
from config.platform.webhooks.openapi import DELIVERY_ID, HOOK_ID
from exports.core.errors import explain

JOB_ID = "0197a3c4-6f0e-4f6b-9d3a-2b8f5f0c1d11"
REPLAY_ID = "0197a3d0-1c52-4a0e-8f57-6d1f0f1f7c02"
SCHEDULE_ID = "0197a3a0-2f64-4d4c-9d8f-0f6a7b1c2e53"
SECRET = "whsec_4GBMpkXm6Wd0vNVrWb0w8Zs1oJtYkJcT2iE5rH7uQ3A="
SHA = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
ITEMS: dict[str, Any] = {"dataset": "flights", "items": [{"key": "JFK", "effectiveDate": "2013-02-15"}]}
FILTERS: dict[str, Any] = {
    "name": "Flights of February",
    "dataset": "flights",
    "filters": {"keys": ["JFK", "EWR"], "dateFrom": "2013-02-01", "dateTo": "2013-02-28"},
    "compression": "gzip",
    "csv": {"delimiter": ";", "formulaPolicy": "escape"},
}
DOCUMENTS: dict[str, Any] = {
    "dataset": "documents",
    "filters": {"ruleId": 3, "dateFrom": "2026-02-01", "dateTo": "2026-02-28", "status": "completed"},
    "format": "parquet",
}
ACCEPTED = {
    "jobId": JOB_ID,
    "status": "pending",
    "receiptUrl": f"/exports/{JOB_ID}",
    "totalChunks": 56,
    "duplicates": 0,
    "eventsUrl": f"/exports/{JOB_ID}/events",
    "chunksUrl": f"/exports/{JOB_ID}/chunks",
}
REPLAYED = {
    **{name: str(value).replace(JOB_ID, REPLAY_ID) for name, value in ACCEPTED.items()},
    "totalChunks": 56,
    "duplicates": 0,
}
PROGRESS: dict[str, Any] = {
    "total": 56,
    "pending": 40,
    "running": 5,
    "retrying": 0,
    "done": 11,
    "failed": 0,
    "cancelled": 0,
    "reused": 3,
    "degraded": 0,
    "rows": 3214,
    "bytes": 298112,
    "percent": 19.6,
    "etaSeconds": 42,
}
RUNNING: dict[str, Any] = {
    "jobId": JOB_ID,
    "name": "Flights of February",
    "dataset": "flights",
    "status": "running",
    "format": "csv",
    "compression": "gzip",
    "delivery": "zip",
    "columns": None,
    "scheduleId": None,
    "plannedAt": None,
    "createdAt": "2026-03-01T09:00:00.000000Z",
    "startedAt": "2026-03-01T09:00:00.250000Z",
    "finishedAt": None,
    "purgeAt": "2026-03-08T09:00:00.000000Z",
    "queuePosition": 0,
    "progress": PROGRESS,
    "error": None,
    "receipt": None,
}
DONE = {
    **PROGRESS,
    "pending": 0,
    "running": 0,
    "done": 56,
    "rows": 16480,
    "bytes": 1528704,
    "percent": 100.0,
    "etaSeconds": None,
}
ENDED = {**RUNNING, "finishedAt": "2026-03-01T09:00:51.000000Z", "purgeAt": "2026-03-08T09:00:51.000000Z"}
RECEIPT = {
    "signedUrl": f"https://sluice.example/exports/{JOB_ID}/download?token=0197a3c4.1tqXhK",
    "expiresAt": "2026-03-01T09:10:51.000000Z",
    "deliveryExpiresAt": "2026-03-02T09:00:51.000000Z",
    "checksum": SHA,
    "sizeBytes": 421004,
    "rows": 16480,
    "files": 56,
    "degraded": False,
    "contentType": "application/zip",
    "fileName": "flights.zip",
    "state": "active",
}
SUCCESS = {**ENDED, "status": "success", "progress": DONE, "receipt": RECEIPT}
TIMEOUT = explain("EXPORT_SOURCE_TIMEOUT", "SQLSTATE 57014")
FAILED = {**ENDED, "status": "failed", "progress": {**DONE, "done": 55, "failed": 1}, "error": TIMEOUT}
CANCELLED = {
    **ENDED,
    "status": "cancelled",
    "progress": {**DONE, "done": 11, "cancelled": 45, "rows": 3214, "bytes": 298112},
}
RETRIED = {**RUNNING, "progress": {**DONE, "pending": 1, "done": 55, "percent": 98.2, "etaSeconds": 1}}
CHUNK = {
    "key": "JFK",
    "effectiveDate": "2013-02-15",
    "status": "done",
    "attempts": 1,
    "source": "live",
    "rows": 298,
    "bytes": 27631,
    "checksum": SHA,
    "dataAsOf": "2026-03-01T09:00:02.114000Z",
    "path": "flights/_dialect-751578f4/2013/02/15/JFK_20130215.csv.gz",
    "error": None,
    "sourceMessage": None,
}
FAILED_CHUNK = {
    **CHUNK,
    "status": "failed",
    "attempts": 4,
    "source": None,
    "rows": None,
    "bytes": None,
    "checksum": None,
    "dataAsOf": None,
    "error": TIMEOUT,
    "sourceMessage": "canceling statement due to statement timeout",
}
PREVIEW = {"totalChunks": 56, "duplicates": 0, "reusable": 3, "quotaCost": 53}
LIMITS = {
    "jobsPerDay": {"limit": 1000, "used": 12, "remaining": 988, "resetsAt": "2026-03-02T00:00:00Z"},
    "chunksPerDay": {"limit": 100000, "used": 5311, "remaining": 94689, "resetsAt": "2026-03-02T00:00:00Z"},
    "maxChunksPerJob": 10000,
    "rate": "60/min",
}
DATASETS: dict[str, Any] = {
    "results": [
        {
            "name": "flights",
            "kind": "function",
            "schemaVersion": 1,
            "formats": ["csv", "jsonl", "json", "parquet"],
            "keyPattern": "[A-Z]{3}",
            "grantedKeyPatterns": None,
            "showErrors": False,
        },
        {
            "name": "documents",
            "kind": "documents",
            "schemaVersion": 1,
            "formats": ["csv", "jsonl", "parquet"],
            "keyPattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
            "showErrors": False,
            "grantedKeyPatterns": None,
        },
    ],
    "next": None,
    "previous": None,
}
DATASET = {
    **DATASETS["results"][0],
    "columns": [{"name": "flight_id", "type": "bigint"}, {"name": "carrier", "type": "text"}],
}
LINK = {"signedUrl": RECEIPT["signedUrl"], "expiresAt": RECEIPT["expiresAt"]}
WEBHOOK = {
    "id": HOOK_ID,
    "url": "https://shop.example/hooks/sluice",
    "events": ["export.succeeded", "export.failed"],
    "enabled": True,
    "disabledReason": None,
    "createdAt": "2026-02-27T15:12:09.481000Z",
}
NEW_WEBHOOK = {"url": WEBHOOK["url"], "events": WEBHOOK["events"]}
DELIVERY = {
    "id": DELIVERY_ID,
    "type": "export.succeeded",
    "jobId": JOB_ID,
    "subject": None,
    "status": "delivered",
    "attempts": 2,
    "createdAt": "2026-03-01T09:00:51.020000Z",
    "nextAttemptAt": None,
    "finishedAt": "2026-03-01T09:01:11.283000Z",
    "log": [
        {"at": "2026-03-01T09:00:51.200000Z", "statusCode": None, "error": "no response in time", "durationMs": 15000},
        {"at": "2026-03-01T09:01:11.200000Z", "statusCode": 204, "error": None, "durationMs": 83},
    ],
}
WAITING = {
    **DELIVERY,
    "status": "pending",
    "attempts": 0,
    "nextAttemptAt": "2026-03-01T10:00:00.000000Z",
    "finishedAt": None,
}
TEST = {**WAITING, "type": "webhook.test", "jobId": None, "log": []}


def without_link(job: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a job in webhooks."""
    receipt = job["receipt"] and {name: value for name, value in job["receipt"].items() if name != "signedUrl"}
    return {**job, "receipt": receipt}


STREAM = b"".join(
    [
        sse.RETRY,
        sse.frame("snapshot", RUNNING, number=38),
        sse.frame("chunk", CHUNK, number=39),
        sse.frame("progress", DONE, number=40),
        sse.frame("status", {"status": "success", "error": None, "at": ENDED["finishedAt"]}, number=41),
    ]
).decode()
NEW_SCHEDULE: dict[str, Any] = {
    "name": "Daily flights",
    "cron": "0 6 * * *",
    "timezone": "Europe/Berlin",
    "request": {"dataset": "flights", "keys": ["JFK", "EWR"], "format": "csv"},
    "window": {"unit": "day", "from": -1, "to": -1},
    "sinceLastSuccess": False,
    "misfire": "catch_up",
    "enabled": True,
}
SCHEDULE: dict[str, Any] = {
    "id": SCHEDULE_ID,
    **NEW_SCHEDULE,
    "disabledReason": None,
    "nextRunAt": "2026-03-02T05:00:00.000000Z",
    "lastRun": {
        "jobId": JOB_ID,
        "status": "success",
        "startedAt": "2026-03-01T05:00:04.180000Z",
        "plannedAt": "2026-03-01T05:00:00.000000Z",
        "detail": None,
    },
    "createdAt": "2026-02-27T14:03:11.402000Z",
}
