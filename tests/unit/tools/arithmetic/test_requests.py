"""Sums within requests: what only asks is left out, what may change the sum is not, and small talk is no sum."""

import json
import random
from collections import Counter
from contextlib import suppress
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import CallError
from orchestra.synthesis.questions.arithmetic import arithmetic
from orchestra.synthesis.questions.beyond import beyond
from orchestra.tools.calculator import evaluate, printed
from tests.support.worlds import ROOT

ASKED = """
Hi there! Could you work out 1,200 times 3 for me? Thank you so much.|3600
My boss wants to know this: the sum of 12, 5 and 8.|25
I wonder what seven plus 4 is.|11
one question: do you know what 12 / 4 is?|3
what is 3 files plus 4 files|ERROR
what is 5 trees plus 3 trees?|ERROR
5 tents plus 3 tents|ERROR
5 quarts plus 3 quarts|ERROR
3 tons plus 2 tons|ERROR
what is that plus 5?|ERROR
what is that -5?|ERROR
now the result minus 4|ERROR
tell me please -5 + 3|-2
hey what is minus 3 plus 10|7
here is the problem: -5 + 3|-2
what is 15% more than 200?|230
what is 20% less than 50?|40
double 50, then add 10%|110
start with 100, add 10%, add 10%|121
increase 80 by (25%)|100
100 - (10% + 5%)|99.85
7 / 2, floor it|ERROR
7 / 2, truncated|ERROR
5 + 3, negate it|ERROR
The average: 4 + 8|ERROR
SUM: 62 PLUS 35|97
plesae tell me what 3/4 of 80 cmoes to|60
Multiply 3, 5 and 2. No long story.|30
multiply 11 by 11 by 11|1331
Halve forty-two.|21
Is half of 18 a lot? What is it?|9
What is a 20 percent tip on $45?|9
need 7.5% sales tax on 200 dollars. just the tax please|15
40 dollars plus 5 dollars|45
30 out of 40 as a percentage pls|75
What is left over if I share 50 sweets equally among 8|ERROR
what is left over if i share 50 among 8|2
how many minutes are there in three and a half hours|210
hey quick one, how many seconds in a day|86400
how many days is 6 weeks|42
convert 3 miles to km|4.828
5 feet in inches|60
90 minutes, how many hours is that?|1.5
How many kg are 250 grams?|0.25
how many seconds are in 20 mins?|1200
120 mins in hours|2
45 plus an 18% tip|53.1
100 plus VAT at 19%|119
90 reduced by a third|60
Reduce 90 by a third.|60
80 increased by a quarter|100
80 reduced by 5|75
divide 90 among 4 friends|22.5
What's left if I take 13 from 40?|27
add 3, 4 and 5 together|12
what do 3 and 4 make|7
how much is 12 x 7 altogether|84
How many 6s go into 42?|7
how many 2s are there in 1222|ERROR
Do two hundred and fifty times three.|750
Do one hundred and five - one hundred and twenty.|-15
do 2 and a half times 4|10
do 10 minus 2 and a half|7.5
2k at $5 each|ERROR
3 dozen at 2 each|ERROR
5 percent at 200 each|ERROR
three tickets at 5 each|15
3 tickets at $12.50 each|37.5
2k plus 3k|5000
Kindly tell me what 70 minus 8 comes to. Thanks!|62
how many minutes in 3 hours and 20 minutes|200
6 feet 2 inches in just inches?|74
2 weeks and 3 days = how many days|17
12 km plus 450 m, in metres|12450
how many metres are 3 km and 2 kg|ERROR
how many grams it is half a kilo|500
7 gallons to pints pls|56
2 gallons in litres|ERROR
how many pounds is 3 stone, mate?|42
240 minutes, how many hours|4
convert 3 miles to kilometers, exact value|4.828
16% tip on $25, just the tip|4
25 plus 16% tip, just the tip|ERROR
split $84 evenly between 4 people, how much each|21
split 84.60 three ways|28.2
5 items at $2.35 each whats the total|11.75
take 20% off 250 and tell me what's left|200
15% off $140, final price?|119
bill of $60 plus 15% tip, total please|69
add 7% tax to $300 and give me the total|321
tax of 6.5% on $200|13
price of 70 euro with 20% VAT added, how much it becomes|84
percentage increase from 40 to 60|50
what's the percent decrease going from 160 to 120|25
what is 3/5 as a percent|60
what do 14, 27 and 6 add up to|47
average between 100 and 251|175.5
50% discount on 80, how much is the discount itself|40
pls calculate 560 divide by 16|35
17 multiply by 21|357
uh what's 16 times 25, too lazy to think lol|400
Sorry to bother you, but what is 17% of 1,500?|255
7 / 3, doubled|4.6667
Just checking: 4 and a half hours in minutes?|270
8 times 8 times 8, my phone is broke|512
5 - 12, taken as positive|ERROR
Add these up for me love: 18, 27, 36|81
Turn 2.75 kilograms into grams, would you?|2750
9 feet = ___ inches|108
can u minus 4.5 from 10|5.5
60 shared out equally between 8|7.5
sixty bucks, forty percent off, what do i pay|36
75% of what number is 60?|80
take 18 off 75 then double whats left|114
change from a 50 if its 32.65|17.35
84 cut into four equal parts|21
7 times 3, each|ERROR
7 times 3, reversed|ERROR
3 tickets at 12.50|ERROR
90 into 4 parts|ERROR
60 including 20% vat|ERROR
what do 3 and 4 have in common|ERROR
7/3, rounded down|ERROR
What is 7 / 3? Round to the nearest integer.|ERROR
log of 3 + 4|ERROR
In base 2, what is 10 + 11?|ERROR
call me at 5|ERROR
I am 34.|ERROR
How many dollars is a euro?|ERROR
how many minutes are in 3 kg|ERROR
3 dollars plus 20 cents|ERROR
What is 3 + 4 without the 4?|ERROR
Hi there!|ERROR
Nice.|ERROR
"""


@pytest.mark.parametrize(("text", "value"), [line.split("|") for line in ASKED.strip().splitlines()])
def test_a_request_is_read_only_where_it_asks_for_one_sum(text: str, value: str) -> None:
    if value == "ERROR":
        with pytest.raises(CallError):
            evaluate(text)
    else:
        assert printed(evaluate(text)) == value


def test_nearly_every_sum_that_is_no_story_is_read_as_it_is_meant() -> None:
    """A misspelt number may be taken for another: two in a hundred of the misspelt ones, one in five hundred of all."""
    itself = wrong = 0
    drafts = list(islice(arithmetic(random.Random(11), set()), 2000))
    for draft in drafts:
        itself += not draft.golden_calls[0].arguments
        try:
            wrong += printed(evaluate(draft.instruction)) != draft.answer
        except CallError:
            continue
    assert itself > 1350 and wrong <= 4


@given(st.integers(0, 10**6))
def test_small_talk_and_what_nobody_here_knows_is_no_sum(seed: int) -> None:
    for request, _ in islice(beyond(random.Random(seed)), 20):
        if not any(letter.isdigit() for letter in request):
            with pytest.raises(CallError):
                evaluate(request)


@given(st.text(max_size=200))
def test_any_request_ends_in_a_number_or_a_call_error(text: str) -> None:
    with suppress(CallError):
        evaluate(text)


def test_the_sums_of_strangers_are_read_or_refused_but_never_misread() -> None:
    read = Counter[str]()
    for line in (ROOT / "tests/data/wording/sums.jsonl").read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        with suppress(CallError):
            assert float(printed(evaluate(sample["ask"]))) == pytest.approx(float(sample["expect"]), abs=1e-4), sample
            read[sample["why"]] += 1
    assert read["stranger 1"] >= 145 and read["stranger 2"] >= 90 and read["stranger 3"] >= 100, read
