"""A scripted server of the OpenAI chat completions protocol, over real HTTP. It records every request."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

MODEL = "test-model"


@dataclass(frozen=True, slots=True)
class Reply:
    """A response. `body`: bytes, or a value to send as JSON. `action`: a function that responds instead."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    action: Callable[["Handler"], None] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    headers: dict[str, str]  # names in lower case
    body: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, str]]:
        return list(self.body["messages"])

    def message(self, role: str) -> str:
        """Return the first message of a role."""
        return next((each["content"] for each in self.messages if each["role"] == role), "")

    @property
    def form(self) -> str:
        """The type of the requested response_format, or ""."""
        return str(self.body.get("response_format", {}).get("type", ""))

    @property
    def json_form(self) -> str:
        """ "strict" for a schema that the server must enforce, else the type of the response_format."""
        is_strict = self.body.get("response_format", {}).get("json_schema", {}).get("strict")
        return "strict" if is_strict else self.form


Answer = Reply | Callable[[Request], Reply]


@dataclass
class ModelServer:
    """A server that sends the responses of `script` in order, and then always `otherwise`."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    script: list[Answer] = field(default_factory=list)
    otherwise: Answer | None = None
    stopped: threading.Event = field(default_factory=threading.Event)

    def enqueue(self, *answers: Answer) -> None:
        self.script.extend(answers)

    def set_default(self, answer: Answer) -> None:
        self.otherwise = answer

    def answer(self, request: Request) -> Reply:
        self.requests.append(request)
        try:
            answer: Answer | None = self.script.pop(0)
        except IndexError:  # no check before, because requests are concurrent
            answer = self.otherwise
        if answer is None:
            return problem(418, "No response is scripted.")
        return answer(request) if callable(answer) else answer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of_models: ModelServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.server_of_models.answer(Request(self.path, headers, json.loads(body)))
        if reply.action:
            reply.action(self)
            return
        content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        self.send_response(reply.status)
        for name, value in (
            {"Content-Type": "application/json", "Content-Length": str(len(content))} | reply.headers
        ).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_args: object) -> None:
        pass


@contextmanager
def running() -> Iterator[ModelServer]:
    models = ModelServer()
    handler = type("Bound", (Handler,), {"server_of_models": models})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # tests disconnect on purpose
    models.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield models
    finally:
        models.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join()


# ---- Responses ------------------------------------------------------------------------------------------------------
def text_reply(content: Any, *, finish: str | None = "stop", usage: Any = (11, 7), **message: Any) -> Reply:
    """Return a response with this text. `usage`: the tokens of prompt and completion, or None for no counts."""
    counted = (
        dict(zip(("prompt_tokens", "completion_tokens"), usage, strict=True)) if isinstance(usage, Sequence) else usage
    )
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [choice]}
    return Reply(body | ({} if counted is None else {"usage": counted}))


def data_reply(data: Any, evidence: Any = None, **options: Any) -> Reply:
    """Return a response with this data and evidence, in the format that the prompt requests."""
    return text_reply(json.dumps({"data": data, "evidence": evidence or {}}), **options)


def problem(status: int, message: str = "No.", *, headers: dict[str, str] | None = None, **facts: Any) -> Reply:
    return Reply({"error": {"message": message, "type": "error", **facts}}, status=status, headers=headers or {})
