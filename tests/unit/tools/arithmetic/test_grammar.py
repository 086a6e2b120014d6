"""What people write into a calculator, one line each, and what is refused because it could mean two things."""

import pytest

from orchestra.errors import CallError
from orchestra.tools.calculator import evaluate, printed

MEANT = """
15% of 240|36
7 x 8|56
7x8|56
5^3|125
sqrt(81)|9
square root of 169|13
1,234 + 1,000,000.5|1001234.5
twenty five plus thirty seven|62
twenty-five plus thirty-seven|62
144 divided by 12|12
half of 17|8.5
37*24 =|888
37*24.|888
what is 37*24?|888
What's 15 percent of 240?|36
200 + 15%|230
200 - 15%|170
10% + 5%|0.15
-7 % 3|2
two hundred and five minus 5|200
the sum of two hundred and five|205
the sum of 3, 4 and 5|12
the sum of 3 and 4, divided by 7|1
the difference between 4 and 9|5
3/4 of 80|60
three quarters of eighty|60
two thirds of 90|60
two and a half times 4|10
3½ + ½|4
2(3+4)|14
(1+2)(3+4)|21
5 less than 20|15
5 more than twice 20|45
double 17, then add 5|39
add 3 to 4|7
add 3, 4 and 5|12
subtract 3 from 10|7
take 3 away from 10|7
multiply 12 by 12|144
divide 144 by 12|12
20 as a percentage of 80|25
what percent of 80 is 20?|25
80 increased by 15%|92
2 to the power of 10|1024
two to the tenth power|1024
the fourth root of 16|2
5th root of 32|2
cube root of 27|3
sqrt 16 + 9|13
10 squared|100
10² + 2³|108
fifteen hundred divided by two|750
1.5 million / 3|500000
two million three hundred thousand and five|2300005
remainder of 17 divided by 5|2
17 mod 5|2
the average of 3, 4 and 8|5
three point one four times 100|314
zero point five times four|2
three dozen|36
$12.50 x 3|37.5
minus five plus seven|2
-2^2|-4
2**-1|0.5
seven times seven|49
a hundred and one|101
half the sum of 10 and 20|15
20% of 50% of 80|8
How much is 12 ÷ 12?|1
8 times 7 equals|56
= 2+2|4
2 + 3 * 4|14
the product of 6 and 7 is|42
one half plus one quarter|0.75
a third of 99|33
10 take away 3|7
1e3|1000
square root of 2|1.4142
6!|720
5! / 3!|20
5 + 5!|10
4 factorial plus 1|25
the factorial of 3|6
average of 10 20 30|20
the mean of 4 8 and 15|9
the sum of all whole numbers from 1 to 100|5050
add up the numbers from 3 to 5|12
nine nines|81
split 91 between 7 people|13
share 91 among 7|13
91 shared equally among 7 friends|13
take 20 percent off 85|68
reduce 250 by 20 percent|200
reduce 250 by 30 percent and the result by another 10 percent|157.5
increase 400 by 7.5%|430
80 with 15% off|68
add 10% to 50|55
by how much is 12 bigger than 7|5
how much less is 7 than 12|5
from 20 take 4|16
18 is what percent of 72|25
what percentage of 72 is 18|25
what is left over when 47 is divided by 6|5
which number squared is 81|9
12 times itself|144
1/8 as a decimal|0.125
2 to the 5|32
start with 200, halve it, add 15, divide by 5|23
double 37 and take away 9|65
halve 30, then add 1|16
one third of 96, then squared|1024
add 3 and 4, then multiply by 5|35
add up 1.5, 2 and minus 4|-0.5
put 12 and 13 together|25
12 and 13 together|25
if you add 19, 22 and 34, what do you get|75
multiply 3, 4 and 5|60
multiply 3 by 4 and by 5|60
the avergae of 4 and 8|6
6 tims 7|42
can u do 12 + 9|21
20 divided by 4 please|5
"""
UNCLEAR = {
    "sum of 3 and 4 times 5": "brackets",
    "6/2(1+2)": r"\*",
    "7 80": "'80'",
    "five twenty": "'twenty'",
    "1,23": "','",
    "1.234,56": "','",
    "2+2=4": "'=4'",
    "product of two hundred and five and three": "digits",
    "average of 10 200 300": "more than one",
    "difference of 9, 4 and 1": "two numbers",
    "five hundred thousand million": "large to small|'million'",
    "2 of 3": "'of'",
    "three point": "digits",
    "()": "missing",
    "1 -": "early",
    "what is": "early",
    "ten elephants": "elephants",
    "": "early",
}


@pytest.mark.parametrize("line", MEANT.strip().splitlines())
def test_what_people_write_is_read_as_they_mean_it(line: str) -> None:
    text, meant = line.rsplit("|", 1)
    assert printed(evaluate(text)) == meant
    assert printed(evaluate(text.upper())) == meant


@pytest.mark.parametrize(("text", "said"), UNCLEAR.items())
def test_what_could_mean_two_things_is_refused_with_a_reason(text: str, said: str) -> None:
    with pytest.raises(CallError, match=said):
        evaluate(text)
