"""As much of W&B's server as its own client needs to upload a run, and wandb-workspaces to save a view."""

import gzip
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Server:
    """What was sent to it."""

    url: str = ""
    silent: set[str] = field(default_factory=set)
    """Runs whose beginning is never answered."""
    runs: list[dict[str, Any]] = field(default_factory=list)
    """The variables of each request that begins or changes a run."""
    history: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)
    exit_codes: dict[str, int] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    views: list[dict[str, Any]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def graphql(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        data: dict[str, Any] = {}
        if "viewer" in query:
            data["viewer"] = {
                "id": "u", "username": "me", "entity": "me", "flags": "{}", "email": "", "teams": {"edges": []},
            }  # fmt: skip
        if "upsertBucket" in query:
            if given["name"] in self.silent:
                self.closing.wait()
            self.runs.append(given)
            owner = {"id": "p", "name": given.get("project"), "entity": {"id": "e", "name": "me"}}
            bucket = {"id": given["name"], "name": given["name"], "displayName": "", "description": "", "config": "{}"}
            data["upsertBucket"] = {"bucket": bucket | {"project": owner, "historyLineCount": 0}, "inserted": True}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/put/{name}"} for name in given["files"]]
            data["createRunFiles"] = {"runID": given["run"], "uploadHeaders": [], "files": files}
        if "upsertView" in query:
            self.views.append(given)
            view = {"id": given.get("id") or f"view{len(self.views)}", "name": given["name"]}
            view |= {"displayName": given["displayName"], "description": given["description"], "type": given["type"]}
            view |= {"project": {"id": "p", "name": given["projectName"], "entityName": given["entityName"]}}
            view |= {"createdAt": "2026-01-01T00:00:00", "updatedAt": "2026-01-01T00:00:00", "spec": given["spec"]}
            data["upsertView"] = {"view": view, "inserted": "id" not in given}
        if "upsertModel" in query:
            data["upsertModel"] = {"model": {"id": "p", "name": "p"}, "inserted": True}
        if "models(" in query:
            data["models"] = {"edges": [], "pageInfo": {"endCursor": None, "hasNextPage": False}}
        return {"data": data}

    def stream(self, run: str, sent: dict[str, Any]) -> None:
        files = sent.get("files", {})
        for line in files.get("wandb-history.jsonl", {}).get("content", []):
            self.history.setdefault(run, []).append(json.loads(line))
        for line in files.get("wandb-summary.json", {}).get("content", []):
            self.summaries.setdefault(run, {}).update(json.loads(line))
        if sent.get("complete"):
            self.exit_codes[run] = sent["exitcode"]


@contextmanager
def serving() -> Iterator[Server]:
    """A server on a free port of this machine."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def body(self):
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data

        def answer(self, value):
            data = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self):
            data = self.body()
            if self.path.endswith("/graphql"):
                sent = json.loads(data)
                self.answer(server.graphql(sent["query"], sent.get("variables") or {}))
            elif self.path.endswith("/file_stream"):
                server.stream(self.path.split("/")[-2], json.loads(data))
                self.answer({})
            else:
                self.answer({})

        def do_PUT(self):
            self.body()
            server.files.append(self.path.removeprefix("/put/"))
            self.answer({})

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        server.url = f"http://127.0.0.1:{http.server_address[1]}"
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield server
        server.closing.set()
        http.shutdown()


def environment(**more: str) -> dict[str, str]:
    """This process' without what says how wandb works."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB") and key != "NETRC"}
    return kept | {"WANDB_ERROR_REPORTING": "false"} | more
