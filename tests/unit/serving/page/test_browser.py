"""The page at `/` in a headless Chromium, over a real gateway: by keyboard, on a phone, in the dark, and in trouble."""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestra.rollout.parse import format_answer, format_call
from orchestra.rollout.policies.base import Conversation, Generation, ScriptedPolicy
from orchestra.serving.app import create_app
from orchestra.serving.backend import Backend
from orchestra.serving.gateway import Gateway
from orchestra.types import ToolCall
from tests.support.browser import SETTING, Page, chromium, opened
from tests.support.real_gateway import listening
from tests.support.serving_world import backend, questions
from tests.support.waiting import soon
from tests.support.worlds import codec

pytestmark = pytest.mark.skipif(
    chromium() is None, reason=f"no Chromium on this machine: install one, or name it with {SETTING}"
)
CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")
ATTACK = "<img src=x onerror=document.title='broken'>"
FORTY = "\n\n".join(f"Paragraph {number}. " + "Opal is deep and cold. " * 20 for number in range(40))
TAB, ENTER = ("Tab", 9), ("Enter", 13)


def at(name: str) -> str:
    """The JavaScript for an element of the page."""
    return f"document.getElementById('{name}')"


def decide(conversation: Conversation) -> str:
    asked = conversation.example.instruction
    if asked == "long":
        return format_answer(FORTY + "x" * 500)
    if asked == "who wrote Opal?" and not conversation.turns:
        return format_call(ToolCall(name="gpt-5", arguments={"question": asked}))
    if not conversation.turns:
        return format_call(ToolCall(name="calculator", arguments={"expression": "37*24"}))
    return format_answer(f"{conversation.turns[0].observation} {ATTACK}")


class HeldPolicy(ScriptedPolicy):
    """Writes nothing while `held` is set."""

    def __init__(self) -> None:
        super().__init__("held", decide, codec().turn)
        self.held = threading.Event()

    async def generate(self, conversations: Sequence[Conversation], max_tokens: Sequence[int]) -> list[Generation]:
        while self.held.is_set():
            await asyncio.sleep(0.01)
        return await super().generate(conversations, max_tokens)


@dataclass
class Site:
    """The page of a gateway."""

    page: Page
    gateway: Gateway
    policy: HeldPolicy
    root: Path
    cut: threading.Event = field(default_factory=threading.Event)
    """Set: answers end after their first event."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        told = 0

        async def counted(message: Any) -> None:
            nonlocal told
            told += message["type"] == "http.response.body"
            if self.cut.is_set() and scope["path"].endswith("completions") and told > 1:
                raise ConnectionError("cut by the test")
            await send(message)

        await create_app(self.gateway, load=False)(scope, receive, counted)

    def backend(self, version: str = "7", least: float | None = -1.0) -> Backend:
        """`least`: None streams an answer token by token."""
        folder = self.root / version
        folder.mkdir()
        made = backend(folder, policy=self.policy, least_confidence=least)
        made.serving = made.serving.model_copy(update={"version": version, "fingerprint": f"f{version}"})
        return made

    def ask(self, question: str, *, ends: bool = True, **values: Any) -> str:
        """Sends the form with these values; what is then shown, once it ended."""
        for name, value in {"question": question, **values}.items():
            set_to = f"{'checked' if isinstance(value, bool) else 'value'} = {json.dumps(value)}"
            self.page.value(f"(e => {{ e.{set_to}; e.dispatchEvent(new Event('change')); }})({at(name)})")
        self.page.value(f"{at('form')}.requestSubmit()")
        if ends:
            assert soon(self.idle, 30)
        return self.shown()

    def idle(self) -> bool:
        return bool(self.page.value(f"{at('stop')}.hidden"))

    def shown(self) -> str:
        return str(self.page.value(f"{at('answers')}.innerText"))

    def offline(self, yes: bool) -> None:
        unlimited = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.page("Network.emulateNetworkConditions", offline=yes, **unlimited)

    def asked(self) -> int:
        """Requests for an answer so far."""
        self.page.value("0")
        sent = self.page.said("Network.requestWillBeSent")
        return sum(one["request"]["url"].endswith("/v1/chat/completions") for one in sent)


@pytest.fixture(scope="module")
def served_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, dict[str, Site], str]]:
    """A page, the site behind an address of its own, and that address."""
    behind: dict[str, Site] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await behind["now"](scope, receive, send)

    with opened(str(chromium()), tmp_path_factory.mktemp("profile")) as page, listening(app) as port:
        page("Emulation.setFocusEmulationEnabled", enabled=True)
        yield page, behind, f"http://127.0.0.1:{port}/"


@pytest.fixture
def site(served_page: tuple[Page, dict[str, Site], str], tmp_path: Path) -> Iterator[Site]:
    page, behind, url = served_page
    made = behind["now"] = Site(page, Gateway(questions(tmp_path)), HeldPolicy(), tmp_path)
    made.gateway.backend = made.backend()
    page.visit(url)
    assert soon(lambda: "Version 7." in page.value(f"{at('about')}.textContent"))
    yield made
    made.policy.held.clear()
    made.offline(False)
    page("Emulation.clearDeviceMetricsOverride")
    page("Emulation.setEmulatedMedia", features=[])
    made.gateway.telemetry.close()


def test_a_question_is_answered_beside_the_experts_own_reply(site: Site) -> None:
    left, right = site.ask("what is 37*24?", compare=True).split("gpt-5's own reply")
    assert 'calculator(expression: "37*24") → 888 · $0.000010 · 0.1 s' in left
    # What a model says is text: no element came of it, and nothing of it ran.
    assert f"888 {ATTACK}" in left and site.page.value("document.title") == "orchestra"
    assert site.page.value("document.querySelectorAll('body img').length") == 0
    # This model does not call the only tool that it may call there.
    assert "no tool named calculator" in right and "no reply of gpt-5" in right
    _, right = site.ask("who wrote Opal?").split("gpt-5's own reply")
    assert "Tesk\n$0.0" in right and "simulated experts" in right


def test_the_console_stays_silent_and_nothing_is_fetched_from_elsewhere(site: Site) -> None:
    site.ask("what is 37*24?", compare=True)
    for kind in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
        assert site.page.said(kind) == []
    here = site.page.value("location.origin")
    asked = {one["request"]["url"] for one in site.page.said("Network.requestWillBeSent")} - {"data:,"}
    assert asked == {here + path for path in ("/", "/v1/models", "/v1/chat/completions")}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_has_enough_contrast(site: Site, scheme: str) -> None:
    site.page("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    site.gateway.keys.create("anybody")
    assert "API key" in site.ask("what is 37*24?", preference="own")
    assert site.page.value(CONTRAST) == []
    site.page.value("document.querySelector('#answers .error').style.color = '#888'")
    assert [found[:2] for found in site.page.value(CONTRAST)] == ([["text", "error"]] if scheme == "light" else [])


def test_forced_colours_leave_the_button_its_letters(site: Site) -> None:
    site.page("Emulation.setEmulatedMedia", features=[{"name": "forced-colors", "value": "active"}])
    letters, ground = site.page.value(
        "(style => [style.color, style.backgroundColor])(getComputedStyle(document.getElementById('ask')))"
    )
    assert letters != ground


def test_a_keyboard_asks_and_stops_and_the_focus_stays(site: Site) -> None:
    site.policy.held.set()
    reached = []
    for _ in range(7):
        site.page.press(*TAB)
        reached.append(site.page.value("document.activeElement.id || document.activeElement.textContent"))
    assert reached == [
        "What is 2 + 3?",
        "When was the Battle of Opal?",
        "question",
        "preference",
        "budget",
        "ask",
        "compare",
    ]
    site.page.value(f"{at('ask')}.focus()")
    site.page.press(*ENTER)
    assert soon(lambda: not site.idle())
    site.page.press(*TAB)
    assert site.page.value("document.activeElement.id") == "stop"
    site.page.press(*ENTER)
    assert soon(site.idle) and "stopped; calls made until then are charged" in site.shown()
    assert site.page.value("document.activeElement.id") == "ask"


def test_a_double_click_asks_once_and_another_question_asks_again(site: Site) -> None:
    site.policy.held.set()
    serves = site.gateway.active
    # Large enough for the button to stay in its place.
    site.page("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False)
    x, y = site.page.value(f"(e => [e.offsetLeft + e.offsetWidth / 2, e.offsetTop + e.offsetHeight / 2])({at('ask')})")
    for count in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            site.page("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=count)
        # A request that ended before it was sent costs nothing.
        assert soon(lambda: serves.in_flight > 0)
    assert site.asked() == 1
    site.ask("who wrote Opal?", ends=False)
    site.policy.held.clear()
    assert soon(site.idle) and site.asked() == 2 and site.shown().count("Tesk") == 2
    site.ask("who wrote Opal?")
    assert site.asked() == 3


def test_waiting_and_silence_are_told(site: Site) -> None:
    site.policy.held.set()
    site.page.value("(later => { window.setTimeout = (what, ms) => later(what, ms / 30); })(window.setTimeout)")
    site.ask("what is 37*24?", ends=False)
    assert soon(lambda: "nothing was heard for 30 seconds" in site.shown())
    site.policy.held.clear()
    assert soon(site.idle) and "888" in site.shown()
    assert "nothing was heard" not in site.shown() and "working" not in site.shown()


@pytest.mark.parametrize(("width", "height"), [(320, 568), (640, 400)])
def test_a_small_window_shows_that_work_began_and_never_scrolls_sideways(site: Site, width: int, height: int) -> None:
    """640 by 400 is a window of 1280 by 800 at 200 percent."""
    site.page("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=width < 640)
    site.policy.held.set()
    site.ask("long", ends=False)
    assert soon(lambda: "working…" in site.shown())
    box = site.page.value("document.querySelector('#answers .status').getBoundingClientRect().bottom")
    assert 0 < box <= height
    site.policy.held.clear()
    assert soon(site.idle) and len(site.shown()) > len(FORTY)
    assert site.page.value("document.documentElement.scrollWidth") <= width


def test_an_answer_that_comes_in_pieces_is_read_out_once(site: Site) -> None:
    """A live region tells what was added: an answer that is set again with each token is told again with each."""
    site.gateway.backend = site.backend("8", least=None)
    site.page.value(
        "{ window.made = []; new MutationObserver(all => all.forEach(one => made.push([one.removedNodes.length,"
        f" one.addedNodes.length]))).observe({at('answers')}, {{ childList: true, subtree: true }}); }}"
    )
    site.ask("what is 37*24?")
    pieces = site.page.value("document.querySelector('#answers .answer').childNodes.length")
    removed = site.page.value("made.filter(([gone]) => gone).length")
    # The word that says that it works vanishes once.
    assert pieces > 1 and removed == 1


def test_letters_grow_with_the_readers_own_size(site: Site) -> None:
    sizes = "[...document.querySelectorAll('body, body *')].map(one => parseFloat(getComputedStyle(one).fontSize))"
    before = site.page.value(sizes)
    site.page.value("document.documentElement.style.fontSize = '200%'")
    assert site.page.value(sizes) == pytest.approx([2 * size for size in before])


def test_a_long_question_is_never_cut_unseen(site: Site) -> None:
    site.page.value(f"{at('question')}.select()")
    site.page("Input.insertText", text="37 " * 10_000)
    assert site.page.value(f"{at('question')}.value.length") == 30_000


def test_a_wrong_budget_says_what_is_right(site: Site) -> None:
    site.ask("what is 37*24?", budget="0,10")
    assert site.asked() == 0 and "0.05" in site.page.value(f"{at('budget')}.title")


def test_a_lost_connection_is_told_in_words(site: Site) -> None:
    site.cut.set()
    assert "the connection ended before the answer did" in site.ask("what is 37*24?")
    site.offline(True)
    shown = site.ask("what is 37*24?", compare=True)
    assert shown.count("the gateway does not answer: check the connection, then ask again") == 2


def test_a_revoked_key_is_told_and_another_one_asks(site: Site) -> None:
    key, secret = site.gateway.keys.create("one")
    assert "an API key is required" in site.ask("what is 37*24?")
    assert site.page.value(f"{at('key')}.checkVisibility()")
    assert "888" in site.ask("what is 37*24?", key=secret)
    site.gateway.keys.revoke(key.id)
    assert "this API key is not valid" in site.ask("what is 37*24?")
    assert "888" in site.ask("what is 37*24?", key=site.gateway.keys.create("two")[1])


def test_a_release_while_the_page_is_open_is_seen(site: Site) -> None:
    site.gateway.backend = site.backend("8")
    site.ask("what is 37*24?")
    assert soon(lambda: "Version 8." in site.page.value(f"{at('about')}.textContent"))
    other = site.backend("9")
    other.card = lambda: {**Backend.card(other), "strongest_expert": "nemotron-49b"}  # type: ignore[method-assign]
    site.gateway.backend = other
    assert "nemotron-49b's own reply" in site.ask("what is 37*24?", compare=True)
