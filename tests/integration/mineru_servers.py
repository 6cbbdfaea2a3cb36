"""Scripted servers of MinerU's three protocols: real HTTP in a thread, with responses shaped like real ones.

Each server works like the real one until a test replaces a reply: `server.on("GET", r"/tasks/\\w+$", reply)` replaces
the replies to such requests, once or always. `make mineru` compares the response shapes of 4.0 with a real server.
"""

import io
import re
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import orjson

from tests.integration.receiver import Reply, answer

Shape = dict[str, Any]
S = TypeVar("S", bound="Scripted")
VERSION = "4.0.12"


@dataclass(frozen=True)
class Call:
    """A received request."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def form(self) -> dict[str, tuple[str | None, bytes]]:
        """Return the parts of a form: the file name, if there is one, and the bytes."""
        head = f"Content-Type: {self.headers['content-type']}\r\n\r\n".encode()
        parts: Any = BytesParser(policy=HTTP).parsebytes(head + self.body).iter_parts()
        return {
            part.get_param("name", header="content-disposition"): (part.get_filename(), part.get_payload(decode=True))
            for part in parts
        }


def reply_json(status: int, body: Any, **headers: str) -> Reply:
    return answer(status, orjson.dumps(body), Content_Type="application/json", **headers)


def reply_zip(body: bytes) -> Reply:
    return answer(200, body, Content_Type="application/zip")


@dataclass
class Job:
    """A job at a server. `polls`: the number of polls that find it unfinished."""

    id: str
    name: str = ""
    document: bytes = b""
    polls: int = 1
    state: str = ""  # the final state, if not success
    error: Shape = field(default_factory=dict)


@dataclass
class Scripted:
    """Base class of the three servers."""

    base: str = ""
    calls: list[Call] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    polls: int = 1
    pages: list[list[str]] = field(default_factory=lambda: [["Invoice 17", "Ünïted Apples"], ["Total: 12.50"]])
    result: bytes | None = None  # replaces the archive that is built from the pages
    fails: Shape = field(default_factory=dict)  # the error of every new job
    replaced: list[tuple[str, re.Pattern[str], Reply, bool]] = field(default_factory=list)

    def on(self, method: str, path: str, reply: Reply, *, once: bool = True) -> None:
        """Replace the reply to requests whose path matches the regular expression `path`."""
        self.replaced.append((method, re.compile(path), reply, once))

    def requests_to(self, method: str, path: str) -> list[Call]:
        return [call for call in self.calls if call.method == method and re.search(path, call.path)]

    def forget(self) -> None:
        """Lose all jobs, like a restarted server."""
        self.jobs.clear()

    def reply_to(self, call: Call) -> Reply:
        self.calls.append(call)
        for number, (method, path, reply, once) in enumerate(self.replaced):
            if call.method == method and path.search(call.path):
                if once:
                    del self.replaced[number]
                return reply
        return self.work(call)

    def work(self, call: Call) -> Reply:
        raise NotImplementedError

    def begin(self, job_id: str, call: Call | None = None) -> Job:
        name, document = call.form["files"] if call else (None, b"")
        job = Job(id=job_id, name=name or "", document=document, polls=self.polls, error=self.fails)
        job.state = "failed" if self.fails else ""
        self.jobs[job.id] = job
        return job

    def is_over(self, job: Job) -> bool:
        if job.polls > 0:
            job.polls -= 1
            return False
        return True


# ---- 3.x ------------------------------------------------------------------------------------------------------------
class V3Server(Scripted):
    def work(self, call: Call) -> Reply:
        if (call.method, call.path) == ("GET", "/health"):
            return reply_json(200, self.health())
        if (call.method, call.path) == ("POST", "/tasks"):
            job = self.begin(str(uuid4()), call)
            return reply_json(202, self.status(job, "pending") | {"message": "Task submitted successfully"})
        found = re.fullmatch(r"/tasks/([\w-]+)(/result)?", call.path)
        if not found:
            return reply_json(404, {"detail": "Not Found"})
        if found[1] not in self.jobs:
            return reply_json(404, {"detail": "Task not found"})
        return self.job_reply(self.jobs[found[1]], is_result=bool(found[2]))

    def job_reply(self, job: Job, *, is_result: bool) -> Reply:
        if not is_result:
            return reply_json(200, self.status(job, (job.state or "completed") if self.is_over(job) else "processing"))
        if job.state == "failed":
            return reply_json(409, self.status(job, "failed") | {"message": "Task execution failed"})
        return reply_zip(self.result if self.result is not None else self.archive())

    def health(self) -> Shape:
        counts = dict.fromkeys(("queued_tasks", "processing_tasks", "completed_tasks", "failed_tasks"), 0)
        return {"status": "healthy", "version": "3.4.5", "protocol_version": 2, **counts, "max_concurrent_requests": 3}

    def status(self, job: Job, status: str) -> Shape:
        is_over = status in {"completed", "failed"}
        return {
            "task_id": job.id,
            "status": status,
            "backend": "hybrid-engine",
            "file_names": [job.name.partition(".")[0]],
            "created_at": "2026-11-22T04:33:36.395531+00:00",
            "started_at": None if status == "pending" else "2026-11-22T04:33:36.399650+00:00",
            "completed_at": "2026-11-22T04:33:37.438185+00:00" if is_over else None,
            "error": job.error.get("message") if status == "failed" else None,
            "status_url": f"{self.base}/tasks/{job.id}",
            "result_url": f"{self.base}/tasks/{job.id}/result",
            "queued_ahead": 0,
        }

    def archive(self) -> bytes:
        return pack(
            {
                "17/auto/17.md": "\n\n".join(text for page in self.pages for text in page),
                "17/auto/17_content_list.json": orjson.dumps(listed(self.pages)),
                "17/auto/17_content_list_v2.json": b"[]",
                "17/auto/17_middle.json": orjson.dumps(middle(self.pages, "3.4.5")),
            }
        )


def listed(pages: list[list[str]]) -> list[Shape]:
    return [
        {"type": "text", "text": text, "bbox": [62, 480, 946, 904], "page_idx": number}
        for number, page in enumerate(pages)
        for text in page
    ]


def middle(pages: list[list[str]], version: str) -> Shape:
    infos = [{"para_blocks": [], "discarded_blocks": [], "page_idx": number} for number in range(len(pages))]
    return {"pdf_info": infos, "_backend": "hybrid", "_version_name": version, "_ocr_enable": False}


# ---- 4.0 ------------------------------------------------------------------------------------------------------------
class V4Server(Scripted):
    tiers: tuple[str, ...] = ("flash", "basic", "standard")
    has_zip = True

    def work(self, call: Call) -> Reply:
        if call.method == "GET" and call.path == "/v1/health":
            return reply_json(200, self.health())
        if call.method == "GET" and call.path == "/v1/tiers":
            return reply_json(200, self.list_tiers())
        if (call.method, call.path) == ("POST", "/v1/tasks"):
            job = self.begin(f"job_{uuid4().hex[:24]}", call)
            return reply_json(202, self.status(job, "queued", call.query["tier"][0]))
        found = re.fullmatch(r"/v1/tasks/(\w+)(/result)?", call.path)
        if not found:
            return reply_json(404, {"detail": "Not Found"})
        if found[1] not in self.jobs:
            return reply_json(404, error_4("invalid_request_error", "job_not_found", f"Job {found[1]} not found"))
        return self.job_reply(self.jobs[found[1]], call, is_result=bool(found[2]))

    def job_reply(self, job: Job, call: Call, *, is_result: bool) -> Reply:
        if call.method == "DELETE":
            job.state = "canceled"
            return reply_json(200, self.status(job, "canceled"))
        if not is_result:
            return reply_json(200, self.status(job, (job.state or "completed") if self.is_over(job) else "running"))
        if job.state in {"failed", "canceled"}:
            return reply_json(409, self.status(job, job.state))
        if self.has_zip and call.query.get("response_format") == ["zip"]:
            return reply_zip(self.result if self.result is not None else self.archive())
        return reply_json(200, self.result_json(job))

    def health(self) -> Shape:
        formats = ["markdown", "middle_json", "structured_content", "zip"]
        features = {"webhook": False, "output_formats": formats, "sources": ["file_id", "url", "inline"]}
        return {"status": "ok", "version": VERSION, "features": features}

    def list_tiers(self) -> Shape:
        return {
            "object": "list",
            "data": [
                {"id": tier, "description": f"Parsing, {tier}.", "current_model": f"mineru-{VERSION}"}
                for tier in self.tiers
            ],
        }

    def status(self, job: Job, status: str, tier: str = "standard") -> Shape:
        link = f"/v1/tasks/{job.id}"
        is_over = status not in {"queued", "running"}
        return {
            "status": status,
            "created_at": "2026-11-22T04:26:40Z",
            "started_at": None if status == "queued" else "2026-11-22T04:26:40Z",
            "finished_at": "2026-11-22T04:26:46Z" if is_over else None,
            "tier": tier,
            "output_formats": ["markdown", "structured_content", "zip"],
            "access_level": "anonymous",
            "progress": {"completed": int(status == "completed"), "failed": int(status == "failed"), "total": 1},
            "files": [self.file(job, status)],
            "links": {"self": link, "cancel": link},
            "task_id": job.id,
            "status_url": link,
            "result_url": f"{link}/result",
        }

    def file(self, job: Job, status: str) -> Shape:
        formats = dict.fromkeys(("markdown", "middle_json", "structured_content", "html", "latex", "docx", "zip"))
        is_done = status in {"completed", "partial"}
        parse = {"model_used": None, "duration_ms": 5216, "parser_version": VERSION}
        outputs: Shape = {**formats, "markdown": {"file_id": f"file-{uuid4().hex[:24]}", "bytes": 994}}
        return {
            "file_id": f"file-{uuid4().hex[:24]}",
            "name": job.name,
            "page_range": f"1-{len(self.pages)}" if is_done else "",
            "status": "completed" if is_done else {"canceled": "queued"}.get(status, status),
            "parse": parse if is_done else None,
            "output_files": outputs if is_done else None,
            "error": job.error if status == "failed" else None,
        }

    def result_json(self, job: Job) -> Shape:
        body = self.status(job, "completed")
        content = {"markdown": self.markdown(), "structured_content": structured(self.pages)}
        body["files"][0]["content"] = content
        return body

    def archive(self) -> bytes:
        return pack(
            {
                "markdown.md": self.markdown(),
                "middle_json.json": b"{}",
                "structured_content.json": orjson.dumps(structured(self.pages)),
                "model_output.json": b"{}",
                "images/page_0_table_4.jpg": b"\xff\xd8\xff",
            }
        )

    def markdown(self) -> str:
        return "\n\n".join(text for page in self.pages for text in page)


def structured(pages: list[list[str]]) -> Shape:
    return {
        "pages": [
            {
                "page_idx": number,
                "blocks": [{"type": "text", "bbox": [0.052, 0.143, 0.948, 0.179], "content": text} for text in page],
            }
            for number, page in enumerate(pages)
        ],
        "metadata": {
            "file_suffix": "pdf",
            "producer": {"name": "mineru", "version": VERSION},
            "document": {
                "created_at": "2026-11-22T04:26:40Z",
                "page_count": len(pages),
                "page_count_kind": "physical",
            },
        },
        "extensions": {"mineru": {"tier": "standard", "parse_mode": "txt"}},
        "is_full_document": True,
    }


def error_4(kind: str, code: str, message: str) -> Shape:
    return {"error": {"type": kind, "code": code, "message": message, "param": None}}


# ---- The hosted service ---------------------------------------------------------------------------------------------
class CloudServer(Scripted):
    path = "/api/v4"
    key = "cloud-key"
    zip_url = ""  # the URL of results, on the same server unless a test changes it

    def work(self, call: Call) -> Reply:
        if call.path.startswith("/results/"):
            return reply_zip(self.result if self.result is not None else self.archive())
        if call.headers.get("authorization") != f"Bearer {self.key}":
            return reply_json(401, {"success": False, "msgCode": "A0202", "msg": "user token invalid"})
        if (call.method, call.path) == ("POST", "/api/v4/extract/task"):
            return reply_json(200, envelope({"task_id": self.begin(str(uuid4())).id}))
        found = re.fullmatch(r"/api/v4/extract/task/([\w-]+)", call.path)
        if not found:
            return reply_json(404, {"success": False, "msgCode": "A0404", "msg": "not found"})
        if found[1] not in self.jobs:
            return reply_json(200, envelope(None, code=-60012, msg="task not found"))
        return reply_json(200, envelope(self.state(self.jobs[found[1]])))

    def state(self, job: Job) -> Shape:
        body: Shape = {"task_id": job.id, "data_id": "", "err_msg": "", "full_zip_url": ""}
        if not self.is_over(job):
            pages = {"extracted_pages": 1, "total_pages": len(self.pages), "start_time": "2026-11-22 12:00:00"}
            return body | {"state": "running", "extract_progress": pages}
        if job.state:
            return body | {"state": "failed", "err_msg": job.error["message"]}
        origin = self.base.removesuffix(self.path)
        return body | {"state": "done", "full_zip_url": self.zip_url or f"{origin}/results/{job.id}.zip"}

    def archive(self) -> bytes:
        return pack(
            {
                "full.md": "\n\n".join(text for page in self.pages for text in page),
                "layout.json": orjson.dumps(middle(self.pages, "2.7.6")),
                "8f0a_model.json": b"[]",
                "8f0a_content_list.json": orjson.dumps(listed(self.pages)),
                "images/0a1b.jpg": b"\xff\xd8\xff",
            }
        )


def envelope(data: Any, *, code: int = 0, msg: str = "ok") -> Shape:
    return {"code": code, "data": data, "msg": msg, "trace_id": "c876cd60b202f2396de1f9e39a1b0172"}


# ---- Archives -------------------------------------------------------------------------------------------------------
def pack(members: dict[str, str | bytes]) -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return body.getvalue()


# ---- Running --------------------------------------------------------------------------------------------------------
@contextmanager
def serving(scripted: S) -> Iterator[S]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            place = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            with lock:
                reply = scripted.reply_to(Call(self.command, place.path, parse_qs(place.query), headers, body))
            try:
                reply(self)
            except OSError:
                self.close_connection = True  # the client disconnected

        do_GET = do_POST = do_DELETE = handle_any  # noqa: N815 - http.server's names

        def log_message(self, *_args: Any) -> None:
            """Log nothing."""

    with running(Handler) as port:
        scripted.base = f"http://127.0.0.1:{port}{getattr(scripted, 'path', '')}"
        yield scripted


@contextmanager
def running(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_args: Any) -> None:
            """Log nothing: clients disconnect."""

    with Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
