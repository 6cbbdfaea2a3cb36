"""The checker of soak tests. It accepts a correct record, and each of its rules rejects a record that violates it."""

import copy
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.chaos.history import checker, event_rules, file_rules, history, job_rules
from tests.chaos.history.record import Line, file_facts
from tests.chaos.history.source import FEW, clean_file

JOB, FAILED = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
HOOK, SECRET = "hook-1", "whsec_" + "c2x1aWNl" * 4
DAY, VERSION, SCHEMA = "2024-02-28", 17, 2
REQUEST = {
    "dataset": "clean",
    "reuse": "never",
    "filters": {"keys": ["ATL"], "dateFrom": DAY, "dateTo": DAY},
}
SLICES = [("ATL", DAY, VERSION)]
CONTENT = clean_file(SLICES, schema=SCHEMA, form="csv")
ENTRY = {
    "key": "ATL",
    "effectiveDate": DAY,
    "fileName": "ATL.csv",
    "rows": FEW,
    "bytes": len(CONTENT),
    "sha256": hashlib.sha256(CONTENT).hexdigest(),
}
LINK = f"/exports/{JOB}/download?token=first"
NEWER = f"/exports/{JOB}/download?token=second"


def progress(**counts: int) -> Line:
    names = (*job_rules.COUNTED, "reused", "degraded", "rows", "bytes")
    return {"total": 1, **dict.fromkeys(names, 0), **counts}


def body_of(job: str, status: str, counts: Line, *, receipt: Line | None = None) -> Line:
    return {"jobId": job, "dataset": "clean", "status": status, "progress": counts, "receipt": receipt}


def answer(op: str, status: int, body: Any = None, *, user: str = "alice", **facts: Any) -> Line:
    defaults = {"path": f"/exports/{facts.get('job')}", "token": user, "agent": f"soak/{user}", "problem": status > 400}
    text = json.dumps(body).encode()
    sha256 = hashlib.sha256(text).hexdigest()
    return (
        {"kind": "response", "op": op, "user": user, "status": status, "body": body, "sha256": sha256}
        | defaults
        | facts
    )


def webhook(number: str, job: Line, *, at: str) -> Line:
    text = json.dumps({"type": event_rules.TYPES[job["status"]], "timestamp": at, "data": job})
    line = {
        "kind": "webhook",
        "endpoint": HOOK,
        "id": number,
        "job": job["jobId"],
        "status": 204,
        "timestamp": "1700000000",
    }
    return line | {"text": text, "body": json.loads(text), "signature": signature(number, text)}


def signature(number: str, text: str) -> str:
    return Webhook(SECRET).sign(number, datetime.fromtimestamp(1_700_000_000, UTC), text)


def record() -> list[Line]:
    """Return a correct record of two jobs and their files.

    One job succeeds. The other one fails, is retried, and fails again.
    """
    done = progress(done=1, rows=FEW, bytes=len(CONTENT))
    manifest = {"schemaVersion": SCHEMA, "files": [ENTRY]}
    text = json.dumps(manifest).encode()
    facts = {"sha256": hashlib.sha256(text).hexdigest(), "size": len(text), "manifest": manifest}
    receipt = {"checksum": f"sha256:{facts['sha256']}", "sizeBytes": facts["size"], "rows": FEW}
    success = body_of(JOB, "success", done, receipt={**receipt, "signedUrl": f"http://web{LINK}"})
    running, failed = body_of(JOB, "running", progress(running=1)), body_of(FAILED, "failed", progress(failed=1))
    chunk = {"key": "ATL", "effectiveDate": DAY, "status": "done", "source": "live", "rows": FEW, "bytes": len(CONTENT)}
    events = [
        [0.0, 2, "snapshot", running],
        [0.0, 4, "chunk", chunk],
        [0.0, 5, "progress", {}],
        [0.0, 7, "status", {"status": "success"}],
    ]
    stream = {
        "kind": "stream",
        "user": "alice",
        "token": "old",
        "job": JOB,
        "after": None,
        "status": 200,
        "how": "ended",
    }
    file = {"kind": "object", "user": "alice", "job": JOB, "item": ["ATL", DAY], "status": 200, **file_facts(CONTENT)}
    lines = [
        {"kind": "action", "what": "register", "dataset": "clean", "schema": SCHEMA},
        {"kind": "tick", "version": VERSION},
        answer("hook", 201, {"id": HOOK, "secret": SECRET}),
        answer("submit", 202, {"jobId": JOB, "status": "pending"}, key="1", request=REQUEST),
        answer("submit", 202, {"jobId": JOB, "status": "pending"}, key="1", request=REQUEST),
        answer("submit", 202, {"jobId": FAILED, "status": "pending"}, key="2", request=REQUEST),
        {**stream, "events": events},
        {**stream, "events": events[1:], "after": 2},
        webhook("d1", {**success, "receipt": None}, at="2024-03-01T10:00:00Z"),
        webhook("d2", failed, at="2024-03-01T10:00:01Z"),
        answer("poll", 200, failed, job=FAILED),
        answer("retry", 202, {**failed, "status": "running", "progress": progress(running=1)}, job=FAILED),
        webhook("d3", failed, at="2024-03-01T10:00:02Z"),
        answer("poll", 200, success, job=JOB),
        answer("download", 302, job=JOB, path=LINK),
        {"kind": "object", "user": "alice", "job": JOB, "item": None, "status": 200, **facts},
        answer("download", 403, {"code": "link_used"}, job=JOB, path=LINK),
        answer("link", 200, {"signedUrl": f"http://web{NEWER}"}, job=JOB),
        file,
        file,
        {"kind": "action", "what": "revoke", "token": "old"},
        *({"kind": "tick", "version": 100 + n} for n in range(12)),
        answer("limits", 401, token="old"),
        {"kind": "action", "what": "deactivate", "user": "carol"},
        answer("limits", 401, user="carol"),
        answer("download", 403, {"code": "link_revoked"}, user="carol", job=FAILED, path="/x/y?token=carol"),
        {"kind": "action", "what": "activate", "user": "carol"},
        answer("list", 200, {"results": [success, failed]}, final=True),
        answer("poll", 200, success, job=JOB, final=True),
        answer("poll", 200, failed, job=FAILED, final=True),
        answer("chunks", 200, {"results": [{**chunk, "error": None}]}, job=JOB, final=True),
        answer("chunks", 200, {"results": [{**chunk, "status": "failed", "error": None}]}, job=FAILED, final=True),
        {"kind": "object", "user": "alice", "job": JOB, "item": None, "status": 200, "final": True, **facts},
        answer("limits", 200, {"chunksPerDay": {"used": 1}, "jobsPerDay": {"used": 2}}, final=True),
    ]  # fmt: skip
    lines = [{"began": n, "ended": n + 0.5, **copy.deepcopy(line)} for n, line in enumerate(lines)]
    for line in lines:
        for event in line.get("events", ()):
            event[0] = line["ended"]
    return lines


def find_line(lines: list[Line], name: str, number: int = 0, **facts: Any) -> Line:
    """Return the line with this index among the lines of a kind, operation, or action that have these facts."""
    fitting = [line for line in lines if name in (line["kind"], line.get("op"), line.get("what"))]
    return [line for line in fitting if facts.items() <= line.items()][number]


def insert_after(lines: list[Line], after: Line, line: Line) -> None:
    lines.append({"began": after["ended"] + 0.1, "ended": after["ended"] + 0.2, **line})
    lines.sort(key=lambda each: float(each["began"]))


def test_it_accepts_a_correct_record() -> None:
    assert [str(each) for each in checker.check(record())] == []


def change_line(name: str, number: int = 0, /, where: Line | None = None, **facts: Any) -> Callable[[list[Line]], None]:
    """Return a function that changes facts of one line."""
    return lambda lines: find_line(lines, name, number, **(where or {})).update(facts)


def insert_line(name: str, line: Line, **where: Any) -> Callable[[list[Line]], None]:
    """Return a function that adds a line after another line."""
    return lambda lines: insert_after(lines, find_line(lines, name, **where), copy.deepcopy(line))


def remove_line(name: str, number: int = 0, /, **where: Any) -> Callable[[list[Line]], None]:
    return lambda lines: lines.remove(find_line(lines, name, number, **where))


def final_job(lines: list[Line]) -> Line:
    body: Line = find_line(lines, "poll", job=JOB, final=True)["body"]
    return body


def progress_of(lines: list[Line], **counts: int) -> None:
    final_job(lines)["progress"].update(counts)


def rewrite(lines: list[Line], content: bytes) -> None:
    """Replace the content of all downloads of a file."""
    entry = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    for line in lines:
        if line["kind"] == "object" and line["item"]:
            line.update(file_facts(content))
            entry["rows"] = file_rules.rows_in(line)
    for line in lines:
        if "manifest" in line:
            line["manifest"]["files"][0].update(entry)


def rename(lines: list[Line], old: str, new: str) -> None:
    rewrite(lines, CONTENT.replace(old.encode(), new.encode()))


def keep_events(lines: list[Line], *numbers: int, number: int = 0) -> None:
    """Keep only these events of a stream, in this order."""
    line = find_line(lines, "stream", number)
    line["events"] = [line["events"][each] for each in numbers]


def supersede_file(lines: list[Line]) -> None:
    """Add a response that refuses a file of a manifest delivery as superseded."""
    final_job(lines)["delivery"] = "manifest"
    insert_after(lines, find_line(lines, "link"), answer("file", 410, {"code": "file_superseded"}, job=JOB))


def sign_again(lines: list[Line], number: int, **facts: Any) -> None:
    """Change the body of a webhook delivery, and sign it again."""
    line = find_line(lines, "webhook", number)
    line["body"].update(facts)
    line["text"] = json.dumps(line["body"])
    line["signature"] = signature(line["id"], line["text"])


TAMPERED: list[tuple[str, Callable[[list[Line]], Any]]] = [
    ("responses_are_documented", change_line("poll", status=500, problem=True)),
    ("responses_are_documented", change_line("download", 1, body={"code": "link_expired"})),
    ("responses_are_documented", change_line("object", status=404)),
    ("responses_are_documented", change_line("stream", 1, status=500)),
    ("responses_are_documented", change_line("stream", status=204, events=[])),
    ("files_of_manifests_are_not_superseded", supersede_file),
    ("the_audit_is_complete", change_line("limits", where={"final": True}, status=503, problem=True)),
    ("the_audit_is_complete", change_line("object", 3, status=503)),
    ("the_audit_is_complete", remove_line("object", 3)),
    ("the_audit_is_complete", remove_line("limits", final=True)),
    ("counters_add_up", lambda lines: find_line(lines, "stream")["events"][0][3]["progress"].update(running=2)),
    ("counters_add_up", lambda lines: find_line(lines, "poll", job=JOB)["body"]["progress"].update(reused=2)),
    ("ends_are_final", insert_line("poll", answer("poll", 200, body_of(JOB, "running", progress(running=1))), job=JOB)),
    ("ends_are_final", change_line("retry", op="poll", status=200)),
    ("ends_are_final", lambda lines: find_line(lines, "stream")["events"][3][3].update(status="cancelled")),
    ("a_key_creates_one_job", change_line("submit", 1, sha256="other")),
    ("a_key_creates_one_job", change_line("submit", 1, key="3")),
    ("accepted_jobs_exist_and_end", lambda lines: find_line(lines, "list")["body"]["results"].pop()),
    ("accepted_jobs_exist_and_end", remove_line("submit", 2)),
    ("accepted_jobs_exist_and_end", lambda lines: final_job(lines).update(status="running")),
    ("accepted_jobs_exist_and_end", insert_line("submit", {"kind": "action", "what": "never accepted", "key": "1"})),
    *(
        ("jobs_are_the_sums_of_their_chunks", lambda lines, name=name: progress_of(lines, **{name: 7}))
        for name in ("rows", "bytes", "reused", "degraded", "done")
    ),
    ("jobs_are_the_sums_of_their_chunks",
        lambda lines: find_line(lines, "chunks")["body"]["results"][0].update(key="JFK")),
    *(
        ("downloads_match_their_receipts", lambda lines, name=name, to=to: (
            final_job(lines)["receipt"].update({name: to})
        ))
        for name, to in {"checksum": "sha256:0", "sizeBytes": 1, "rows": 1}.items()
    ),
    *(
        ("files_match_their_entries", lambda lines, name=name, to=to: (
            find_line(lines, "object", item=None)["manifest"]["files"][0].update({name: to})
        ))
        for name, to in {"sha256": "0", "bytes": 1, "rows": 1}.items()
    ),
    ("a_file_stays_the_same", change_line("object", 2, sha256="0")),
    ("a_file_has_the_slices_of_its_request_in_one_version_each",
        lambda lines: rewrite(lines, CONTENT + CONTENT.splitlines(keepends=True)[1].replace(b",17,", b",18,"))),
    ("a_file_has_the_slices_of_its_request_in_one_version_each", lambda lines: rename(lines, "ATL", "JFK")),
    ("a_file_has_the_slices_of_its_request_in_one_version_each",
        lambda lines: rename(lines, f",{DAY},", ",2024-02-29,")),
    ("a_job_has_the_schema_of_its_time", lambda lines: rename(lines, "schema_2", "schema_3")),
    ("a_job_has_the_schema_of_its_time", change_line("register", schema=3)),
    ("a_job_has_the_schema_of_its_time",
        lambda lines: find_line(lines, "object", 3)["manifest"].update(schemaVersion=SCHEMA - 1)),
    ("a_job_has_the_schema_of_its_time",
        lambda lines: rewrite(lines, b"".join(clean_file(SLICES, schema=schema, form="jsonl") for schema in (2, 3)))),
    ("fresh_files_are_fresh", change_line("tick", version=VERSION + 1)),
    ("clean_files_are_exact", lambda lines: rename(lines, "+00,", "+09,")),
    ("clean_files_are_exact", lambda lines: rename(lines, repr(1.1 / 3), f"{1.1 / 3:.15g}")),
    ("clean_files_are_exact", lambda lines: rename(lines, "none,t", "acme,t")),
    ("clean_files_are_exact", lambda lines: rename(lines, "none,t", "none,f")),
    ("clean_files_are_exact", lambda lines: (
        find_line(lines, "chunks", 1)["body"]["results"][0].update(error={"code": "EXPORT_SOURCE_ERROR"})
    )),
    ("streams_are_complete_and_in_order", lambda lines: keep_events(lines, 0, 2, 1, 3)),
    ("streams_are_complete_and_in_order", lambda lines: keep_events(lines, 0, 3, 1)),
    ("streams_are_complete_and_in_order", lambda lines: keep_events(lines, 0, 1, 2)),
    ("streams_are_complete_and_in_order", change_line("stream", 1, after=5)),
    ("streams_are_complete_and_in_order", lambda lines: keep_events(lines, 0, 2, 3)),
    ("streams_are_complete_and_in_order",
        lambda lines: find_line(lines, "stream")["events"][0][3].update(status="pending")),
    ("webhooks_are_signed_ordered_and_unique", change_line("webhook", signature="v1,AAAA")),
    ("webhooks_are_signed_ordered_and_unique", lambda lines: sign_again(lines, 0, type="export.failed")),
    ("webhooks_are_signed_ordered_and_unique", lambda lines: sign_again(lines, 1, timestamp="2024-03-01T11:00:00Z")),
    ("webhooks_are_signed_ordered_and_unique", remove_line("webhook")),
    ("webhooks_are_signed_ordered_and_unique", remove_line("webhook", 2)),
    ("webhooks_are_signed_ordered_and_unique", lambda lines: lines.append(
        {**find_line(lines, "webhook"), "id": "d9", "signature": signature("d9", find_line(lines, "webhook")["text"])}
    )),
    ("webhooks_are_signed_ordered_and_unique", change_line("webhook", 2, id="d2")),
    ("webhooks_are_signed_ordered_and_unique", change_line("hook", user="bob")),
    ("a_link_works_once", change_line("download", 1, status=302, body=None)),
    ("a_link_works_once", change_line("download", 1, body={"code": "link_revoked"})),
    ("a_link_works_for_its_client_until_the_next_one", change_line("download", agent="other/1")),
    ("a_link_works_for_its_client_until_the_next_one", change_line("download", began=90, ended=91)),
    ("access_ends", change_line("limits", status=200, body={}, where={"token": "old"})),
    ("access_ends", change_line("limits", status=200, body={}, where={"user": "carol"})),
    ("access_ends", change_line("download", 2, status=302)),
    ("access_ends", change_line("stream", ended=60)),
    ("access_ends", lambda lines: (
        find_line(lines, "stream").update(ended=60, user="carol", token="carol"),
        find_line(lines, "activate").update(began=61, ended=62),
    )),
    ("access_lasts_until_it_ends", change_line("limits", token="alice", where={"token": "old"})),
    ("access_lasts_until_it_ends", change_line("stream", status=401)),
    ("quotas_match_the_charges", change_line("limits", where={"final": True},
        body={"chunksPerDay": {"used": 2}, "jobsPerDay": {"used": 2}})),
    ("quotas_match_the_charges", change_line("limits", where={"final": True},
        body={"chunksPerDay": {"used": 0}, "jobsPerDay": {"used": 2}})),
    ("quotas_match_the_charges", change_line("limits", where={"final": True},
        body={"chunksPerDay": {"used": 1}, "jobsPerDay": {"used": 3}})),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "tamper"), TAMPERED, ids=[f"{n}-{rule}" for n, (rule, _) in enumerate(TAMPERED)])
def test_each_rule_rejects_a_tampered_record(rule: str, tamper: Callable[[list[Line]], Any]) -> None:
    lines = record()
    tamper(lines)
    assert rule in {each.rule for each in checker.check(lines)}


def test_it_reports_unused_parts_of_the_api() -> None:
    lines = record()
    missing = checker.unused(lines)
    assert "webhook 204" not in missing
    for line in [line for line in lines if line["kind"] == "webhook"]:
        lines.remove(line)
    assert checker.unused(lines) == {*missing, "webhook 204"}


def test_every_rule_has_a_tampered_record() -> None:
    assert {rule for rule, _ in TAMPERED} == {rule.__name__ for rule in history.RULES}
