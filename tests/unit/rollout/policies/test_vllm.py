"""VllmPolicy against a stand-in for the vLLM server: what it asks, what it takes, what it refuses."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from orchestra.errors import ServiceError
from orchestra.rollout.policies.base import Conversation, Generation
from orchestra.rollout.policies.vllm import VllmPolicy, read_completion
from orchestra.types import Turn
from tests.support.worlds import example

Answer = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]


def completion(ids: list[int], reason: str = "stop", **choice: Any) -> dict[str, Any]:
    logprobs = {"token_logprobs": [-0.5] * len(ids)}
    return {
        "choices": [{"token_ids": ids, "finish_reason": reason, "logprobs": logprobs, **choice}],
        "usage": {"prompt_tokens_details": {"cached_tokens": 3}},
    }


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, reply = answer(body)
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}"
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def conversations(count: int) -> list[Conversation]:
    return [Conversation(example(f"e{i}"), [10, 11, i], sample=i % 2) for i in range(count)]


def test_token_ids_go_out_and_come_back_in_order() -> None:
    seen = []

    def answer(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        seen.append(body)
        return 200, completion([*body["prompt"], 1])

    asked = conversations(5)
    asked[0].turns.append(Turn(ids=(7, 1), text="", observation_ids=(8,)))
    with server(answer) as url:
        policy = VllmPolicy(url, "m", name="p", stop_token_ids=[1])
        policy.begin(asked)
        found = asyncio.run(policy.generate(asked, [9, 8, 7, 6, 5]))
        policy.end()
    assert [g.ids for g in found] == [[*c.ids, 1] for c in asked]
    assert found[0] == Generation([10, 11, 0, 7, 1, 8, 1], [-0.5] * 7, "stop", cached_tokens=3)
    by_prompt = {tuple(body["prompt"]): body for body in seen}
    assert [by_prompt[tuple(c.ids)]["max_tokens"] for c in asked] == [9, 8, 7, 6, 5]
    body = seen[0]
    assert body["temperature"] == 0 and "seed" not in body and body["return_token_ids"]
    # Nothing is left to the defaults of the checkpoint's generation_config.json.
    assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (1.0, 0, 0.0, 1.0)
    assert body["stop_token_ids"] == [1]


def test_all_conversations_are_under_way_at_once() -> None:
    together = threading.Barrier(8, timeout=10)

    def answer(_: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        together.wait()
        return 200, completion([1])

    with server(answer) as url:
        asyncio.run(VllmPolicy(url, "m", name="p").generate(conversations(8), [4] * 8))


def test_sampling_is_seeded_per_example_sample_and_turn() -> None:
    policy = VllmPolicy("http://unused", "m", name="p", temperature=1.0, seed=3)
    first = Conversation(example("a"), [1])
    later = Conversation(example("a"), [1], turns=[Turn(ids=(1,), text="")])
    other = [Conversation(example("a"), [1], sample=1), Conversation(example("b"), [1]), later]
    seeds = [policy.request(c, 4)["seed"] for c in [first, *other]]
    assert len(set(seeds)) == 4
    assert policy.request(first, 9)["seed"] == seeds[0]
    assert VllmPolicy("http://unused", "m", name="p", temperature=1.0, seed=4).request(first, 4)["seed"] != seeds[0]


@pytest.mark.parametrize(
    ("status", "reply", "word"),
    [
        (200, completion([], "abort"), "abort"),
        (200, completion([5], "abort"), "abort"),
        (200, completion([]), "0 token ids"),
        (200, completion([5, 6], logprobs={"token_logprobs": [-1.0]}), "2 token ids with 1"),
        (200, {"choices": []}, "index"),
        (200, {}, "choices"),
        (200, completion([5], logprobs={"token_logprobs": [None]}), "NoneType"),
        (500, {"error": "engine dead"}, "HTTP 500"),
        (400, {"error": "too long"}, "too long"),
    ],
)
def test_what_is_not_a_whole_turn_is_a_service_error(status: int, reply: dict[str, Any], word: str) -> None:
    with server(lambda _: (status, reply)) as url, pytest.raises(ServiceError, match=word) as caught:
        asyncio.run(VllmPolicy(url, "m", name="p").generate(conversations(3), [4] * 3))
    assert "\n" not in str(caught.value) and caught.value.retryable


def test_a_server_that_is_gone_is_a_service_error() -> None:
    with server(lambda _: (200, {})) as url:
        pass
    with pytest.raises(ServiceError, match="ClientConnectorError"):
        asyncio.run(VllmPolicy(url, "m", name="p").generate(conversations(1), [4]))


def test_log_probabilities_that_nobody_reads_are_not_asked_for() -> None:
    seen = []

    def answer(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        seen.append(body)
        return 200, completion([5, 6], logprobs=None)

    with server(answer) as url:
        found = asyncio.run(VllmPolicy(url, "m", name="p", logprobs=False).generate(conversations(1), [4]))
        with pytest.raises(ServiceError, match="NoneType"):
            asyncio.run(VllmPolicy(url, "m", name="p").generate(conversations(1), [4]))
    assert found == [Generation([5, 6], [], "stop", cached_tokens=3)]
    assert ["logprobs" in body for body in seen] == [False, True]


def test_a_turn_without_tokens_is_no_turn_whatever_is_asked_for() -> None:
    with pytest.raises(ValueError, match="0 token ids"):
        read_completion(completion([], logprobs=None), logprobs=False)


def test_a_turn_cut_by_the_limit_says_so() -> None:
    assert read_completion(completion([4, 5], "length")).stop == "length"
    body = completion([4, 5])
    body["usage"] = {"prompt_tokens_details": None}
    assert read_completion(body).cached_tokens == 0


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)), st.integers(6, 30))
def test_numbers_are_read_and_written_to_the_last_digit(numbers: list[float], digits: int) -> None:
    spelt = f"[{', '.join(f'{number:.{digits}g}' for number in numbers)}]"
    assert [float(one).hex() for one in from_json(spelt)] == [float(one).hex() for one in json.loads(spelt)]
    assert json.loads(to_json(numbers)) == numbers
