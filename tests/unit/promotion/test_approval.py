"""A request for approval: what an answer makes of it, when it expires, and how a written page takes the answer."""

from datetime import UTC, datetime, timedelta

import pytest

from orchestra.promotion import parts
from orchestra.promotion.approval import Answer, request
from orchestra.promotion.page import markdown, page, sentences, summary
from tests.unit.promotion.test_page import LIMITS, subject

ASKED = datetime(2026, 3, 1, 12, tzinfo=UTC)
WAITING = request(3, 2, "d" * 64, ASKED, 72)
YES, NO = Answer(approve=True, by="Ada"), Answer(approve=False, by="Bob", reason="too slow for us")


def test_a_request_waits_for_so_many_hours_and_no_longer() -> None:
    assert (WAITING.state, WAITING.asked, WAITING.expires) == ("waiting", ASKED, ASKED + timedelta(hours=72))
    assert not WAITING.expired(WAITING.expires - timedelta(seconds=1)) and WAITING.expired(WAITING.expires)


def test_an_answer_in_time_is_kept_with_name_and_reason() -> None:
    assert "by 2026-03-04 12:00 UTC" in WAITING.line and "orchestra approve 3" in WAITING.line
    refused = WAITING.answered(NO, ASKED + timedelta(hours=71))
    assert refused.line == "Refused by Bob on 2026-03-04 11:00 UTC: too slow for us"
    assert refused.answered(YES, ASKED + timedelta(days=9)).line == "Approved by Ada on 2026-03-10 12:00 UTC."


@pytest.mark.parametrize("said", [YES, NO])
def test_an_answer_that_comes_too_late_counts_for_nothing(said: Answer) -> None:
    late = WAITING.answered(said, WAITING.expires)
    assert (late.state, late.by) == ("expired", "") and "Nobody answered by 2026-03-04 12:00 UTC" in late.line
    assert late.answered(said, ASKED).state == "expired"


def test_the_page_of_what_waits_says_so_and_takes_the_answer() -> None:
    decision = subject().decision
    passed = [check.model_copy(update={"passed": True}) for check in decision.reasons]
    good = decision.model_copy(update={"reasons": tuple(passed), "promoted": True})
    asking = subject(decision=good.answered(WAITING), limits=LIMITS.model_copy(update={"approval": "required"}))
    html, text = page(asking), markdown(asking)
    assert asking.decision.name == "Waiting" and not asking.decision.promoted
    assert "checks passed" in sentences(asking)[0] and WAITING.line in summary(asking.decision)
    assert html.count("Waiting") == 2 and "orchestra refuse 3" in html and "A person must approve what passes." in html
    assert text.startswith("**Waiting**") and WAITING.line in text

    answered = WAITING.answered(NO.model_copy(update={"reason": r"<b>\1</b>"}), ASKED)
    taken = parts.renewed(html, *parts.verdict(asking.title, "Rejected", False), parts.answer(answered))
    assert "Waiting" not in taken and r"&lt;b&gt;\1&lt;/b&gt;" in taken and "orchestra refuse 3" not in taken
    assert taken.count('class="badge"') == 1 and taken.count("<title") == taken.count("</title>") == 1
    said = parts.renewed_description(text, answered, "Rejected")
    assert said.startswith("**Rejected**") and "`Refused by Bob" in said and WAITING.line not in said
    said = parts.renewed_description(said, WAITING.answered(YES, ASKED), "Promoted")
    assert said.startswith("**Promoted**") and "Approved by Ada" in said and "Refused by" not in said


def test_a_page_of_another_version_is_not_taken_for_this_one() -> None:
    html = page(subject(title="orchestrator version 12"))
    assert parts.is_about(html, "orchestrator version 12") and not parts.is_about(html, "orchestrator version 1")


def test_a_page_that_asks_nobody_has_no_answer() -> None:
    assert "approval" not in page(subject()) and "approve" not in markdown(subject())
