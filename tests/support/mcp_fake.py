"""An MCP server of 2025 in the standard library alone, quick to start and wrong on request: `mcp_fake.py FAULT…`.

FAULTs: changed (another schema), reworded (other words), paged (a tool a page), hang (never answers), dead (ends at
once, with a reason), remote (a schema that lies elsewhere), and, when its tool is called: garbage, silent, exit, family
(says its own pid and that of a child that leaves its process group).
"""

import json
import os
import subprocess
import sys
from typing import Any

FAULTS = set(sys.argv[1:])
NUMBER = {"type": "integer"}
ADD: dict[str, Any] = {
    "name": "add",
    "description": "adds, in new words" if "reworded" in FAULTS else "adds two numbers",
    "inputSchema": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"a": NUMBER, "b": {"$ref": "http://127.0.0.1:9/s"} if "remote" in FAULTS else NUMBER},
        "required": ["a"] if "changed" in FAULTS else ["a", "b"],
        "additionalProperties": False,
    },
}
SECOND = {"name": "files/search", "description": "", "title": "looks for files", "inputSchema": {"type": "object"}}


def reply(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": "fake", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list" and "paged" in FAULTS:
        return {"tools": [SECOND]} if params.get("cursor") else {"tools": [ADD], "nextCursor": "2"}
    if method == "tools/list":
        return {"tools": [ADD, SECOND]}
    if method == "tools/call" and params["name"] == "add":
        text = family() if "family" in FAULTS else str(params["arguments"]["a"] + params["arguments"]["b"])
        return {"content": [{"type": "text", "text": text}], "isError": False}
    raise LookupError(method)


def family() -> str:
    child = subprocess.Popen(["sleep", "300"], start_new_session=True, stdin=subprocess.DEVNULL)
    return f"{os.getpid()} {child.pid}"


def main() -> None:
    if "dead" in FAULTS:
        sys.exit("no licence for this server")
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request or "hang" in FAULTS:
            continue
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        if request["method"] == "tools/call" and FAULTS & {"silent", "exit", "garbage"}:
            if "exit" in FAULTS:
                sys.exit(1)
            if "garbage" in FAULTS:
                print('{"jsonrpc": "2.0", "id": "\ud800', "[]", '{"x"', sep="\n", flush=True)
                answer["result"] = {"content": [{"type": "text", "text": 7}]}
                print(json.dumps(answer), flush=True)
            continue
        try:
            answer["result"] = reply(request["method"], request.get("params") or {})
        except LookupError:
            answer["error"] = {"code": -32601, "message": "Method not found"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    main()
