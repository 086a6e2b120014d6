"""The decision page in a headless Chromium: quiet, by keyboard, on a phone, in the dark and on paper."""

import base64
from collections.abc import Iterator

import pytest

from orchestra.promotion.page import SECTIONS, page
from tests.support.browser import SETTING, Page, chromium, opened
from tests.unit.promotion.test_page import subject

pytestmark = pytest.mark.skipif(
    chromium() is None, reason=f"no Chromium on this machine: install one, or name it with {SETTING}"
)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("browser")
    (folder / "decision.html").write_text(page(subject()), encoding="utf-8")
    with opened(str(chromium()), folder / "profile") as one:
        one.visit((folder / "decision.html").as_uri())
        yield one


def test_the_console_stays_silent_and_nothing_is_fetched(shown: Page) -> None:
    assert shown.value("document.title").startswith("orchestrator <3>")
    for kind in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
        assert shown.said(kind) == []
    asked = [one["request"]["url"] for one in shown.said("Network.requestWillBeSent")]
    assert asked == [shown.value("location.href").partition("#")[0]]


def test_a_keyboard_reaches_the_reasons_every_section_and_every_episode(shown: Page) -> None:
    shown.press("Tab", 9)
    assert shown.value("document.activeElement.textContent") == "Skip to the reasons"
    assert shown.value("document.activeElement.getBoundingClientRect().left") >= 0, "it shows while it has the focus"
    shown.press("Enter", 13)
    assert shown.value("location.hash") == "#why"
    shown.value("document.querySelector('nav a').focus()")
    reached = []
    for _ in range(120):
        reached.append(shown.value("(e => e.hash || e.tagName)(document.activeElement)"))
        if reached[-1] == "SUMMARY":
            break
        shown.press("Tab", 9)
    assert [name for name in reached if name.startswith("#")] == [f"#{key}" for key in SECTIONS]
    assert not shown.value("document.activeElement.parentElement.open")
    shown.press("Enter", 13)
    assert shown.value("document.activeElement.parentElement.open")
    shown.press("Enter", 13)


def test_a_phone_scrolls_tables_and_never_the_page(shown: Page) -> None:
    shown("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=2, mobile=True)
    try:
        assert shown.value("innerWidth") == 360
        assert shown.value("document.documentElement.scrollWidth") <= 360
        assert (
            shown.value("Math.min(...[...document.querySelectorAll('p')].map(p => p.clientWidth).filter(Boolean))")
            > 200
        )
    finally:
        shown("Emulation.clearDeviceMetricsOverride")


def test_the_dark_has_a_dark_ground_and_light_letters(shown: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = shown.value(ground)
    shown("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    try:
        dark, ink = shown.value(ground), shown.value("getComputedStyle(document.body).color")
    finally:
        shown("Emulation.setEmulatedMedia", features=[])
    assert light == "rgb(255, 255, 255)"
    assert max(map(int, dark[4:-1].split(","))) < 64 and min(map(int, ink[4:-1].split(","))) > 192


def test_on_paper_every_episode_is_open_and_the_navigation_is_gone(shown: Page) -> None:
    seen = "[...document.querySelectorAll('details > ol')].filter(list => list.checkVisibility()).length"
    assert shown.value(seen) == 0
    shown("Emulation.setEmulatedMedia", media="print")
    try:
        assert shown.value(seen) == 10
        assert shown.value("getComputedStyle(document.querySelector('nav')).display") == "none"
    finally:
        shown("Emulation.setEmulatedMedia", media="")
    paper = base64.b64decode(shown("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert paper.startswith(b"%PDF") and len(paper) > 20_000
