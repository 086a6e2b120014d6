"""Little stories with numbers, each with the sum that it asks for.

Letters: `a` to `d` any number, `h` and `l` the larger and the smaller of two, `k` from 2 to 12, `m` a multiple of `b`,
`s` from 2 to 30, `p` and `q` percentages; `x` and `y` are numbers that only distract.
"""

TEXT = """
{a}*{b}
    A box holds {a} jars. How many jars are in {b} boxes?
    {b} tickets cost {a} each. What is the total?
    I work {b} hours at {a} an hour. What do I earn?
    If one pen costs {a}, what do {b} pens cost?
    How many eggs are in {a} boxes of {b}?
    {a} boxes weigh {b} kg each. How heavy are they all?
    I have {a} bags with {b} marbles in each. How many marbles is that?
    {a} rooms with {b} beds each, how many beds?
    Each of {a} pupils needs {b} sheets of paper. How many sheets altogether?
    {a} people pay {b} each. How much comes in?
    My rent is {a} a month. What do I pay in {b} months?
    One metre of cloth is {a}. How much are {b} metres?
    I save {a} every week. How much after {b} weeks?
    A garden is {a} m long and {b} m wide. What is its area?
    What is the area of a rectangle of {a} by {b}?
{a}*{k}
    I buy {k} chairs at {a} each, how much is it?
    {k} bottles at {a} apiece, what is the bill?
    We need {k} cans of paint and a can costs {a}. What will it cost us?
    If a ticket is {a} and we are {k}, what do we pay?
    A worker makes {a} parts an hour. How many in {k} hours?
    What do {k} kilos of apples at {a} a kilo cost?
    {a} litres a day for {k} days, how many litres?
    price {a}, quantity {k}, total?
    A train goes {a} km an hour for {k} hours. How far does it go?
    A car drives at {a} km/h. How far does it get in {k} hours?
    I cycle {a} miles an hour. How far do I come in {k} hours?
    If I walk {a} km a day, how far is that in {k} days?
    A plane does {a} miles per hour. What distance does it cover in {k} hours?
    How far do you get in {k} hours at {a} km an hour?
    We drive for {k} hours at a speed of {a}. How many miles is that?
    A snail creeps {a} cm a minute. How far in {k} minutes?
{k}*{b}
    She reads {k} pages a day for {b} days. How many pages has she read?
    how many seats do {k} rows of {b} have
    a pack has {k} pens, i have {b} packs, how many pens
    There are {k} shelves with {b} books on each. How many books?
    I drink {k} cups a day. How many cups in {b} days?
{m}/{b}
    {m} sweets are shared by {b} children. How many does each get?
    We split a bill of {m} between {b} people. What does each pay?
    How many times does {b} fit into {m}?
    {b} friends share {m} evenly. What does each one get?
    {m} pupils form teams of {b}. How many teams?
    A rope of {m} m is cut into {b} equal pieces. How long is each?
    {m} eggs go into boxes of {b}. How many boxes do I need?
    I drove {m} km in {b} hours. What was my speed?
    {b} of them cost {m}. What does one cost?
    A {m} page book, {b} pages a day. How many days?
    the bill is {m} and we are {b}, what does each of us pay
    {m} litres last {b} days. How much is that a day?
    We are {b} and owe {m}. How much is my share?
    {b} pens cost {m}, so what is the price of one?
    I have {m} to spend and each one costs {b}. How many can I buy?
    How long do {m} pills last at {b} a day?
    It takes {b} minutes for one. How many do I get done in {m} minutes?
{h}-{l}
    There were {h} coins and {l} were spent. How many are left?
    I had {h} apples and ate {l}. How many are left?
    Something costs {l} and I pay with {h}. How much change do I get?
    How old was I {l} years ago if I am {h} now?
    A rope of {h} m is cut by {l} m. How long is it now?
    I have {h} and spend {l}. What remains?
    The book has {h} pages and I have read {l}. How many to go?
    A bus with {h} people, {l} get off. How many are still on it?
    Out of {h} eggs {l} are broken. How many are good?
    I owe {h} and pay back {l}. What do I still owe?
    {h} guests were invited, {l} cannot come. How many will come?
    My account had {h}, then I took out {l}. What is in it?
    She is {h}, he is {l}. How much older is she?
    Born in {l}, how old in {h}?
    It was {h} and now it is {l}. How much did it fall?
    I weigh {h} kg and want to weigh {l}. How much must I lose?
    We have {h} km to go and did {l}. How far is it still?
    he gave away {l} of his {h} stamps, how many has he got now
    The shop sold {l} of {h} loaves. How many stay?
    how many years from {l} to {h}
    I need {h} and have {l}. How much is missing?
    how much change from {h} if it costs {l}
    {l} out of {h} are gone, how many are there still
{a}+{b}
    A shelf has {a} books and gets {b} more. How many now?
    I spent {a} on food and {b} on rent. How much is that together?
    One bag weighs {a} kg and one weighs {b} kg. What do they weigh?
    I had {a} and got {b}. How much do I have?
    {a} boys and {b} girls, how many children?
    I ran {a} km in the morning and {b} km in the evening. How far was that?
    There are {a} red and {b} blue cars. How many cars are there?
    He is {a} now. How old will he be in {b} years?
    The coat is {a} and the hat is {b}. What do I pay for both?
    lunch was {a} and dinner {b}, what did i spend
    A parcel of {a} kg and another of {b} kg, how heavy are both?
    My {a} and your {b}, how much have we got?
    The flight takes {a} hours and the drive {b}. How long is the trip?
    {a} g of flour and {b} g of sugar, what is the weight of the lot?
    {a} people were here and {b} more came. How many are here?
    Yesterday I sold {a}, today {b}. How many is that?
    the shirt costs {a}, shipping is {b}, what do i pay in all
    one is {a} cm and the other {b} cm long, how long end to end
    Is {a} plus {b} {x} or {y}?
    My son says {a} plus {b} is {x}. What is it?
{a}+{b}+{c}
    I paid {a}, {b} and {c}. What did I pay in all?
    The sides are {a}, {b} and {c}. What is the perimeter?
    Three bags of {a}, {b} and {c} kg, how heavy?
    We drove {a} km, then {b} km, then {c} km. How far was it?
    Bread {a}, milk {b}, cheese {c}. What is the total?
    points: {a}, {b}, {c}. how many altogether
{a}-{b}-{c}
    I had {a}, spent {b} and then {c}. What is left?
    Of {a} litres {b} leak and {c} are drunk. How many remain?
    From a wage of {a} go {b} for rent and {c} for food. What stays?
{a}+{b}-{c}
    {a} people are on the bus, {b} get on and {c} get off. How many are on it?
    I had {a}, earned {b} and spent {c}. How much have I got?
    The shop has {a} loaves, bakes {b} more and sells {c}. How many are left?
{a}*{p}/100
    What is a tip of {p}% on {a}?
    My bill is {a} and I tip {p} percent. How much is the tip?
    I earn {a} and pay {p}% tax. How much tax is it?
    {p} percent of the {a} pupils are ill. How many are ill?
    How much interest does {a} bring at {p}% a year?
    The meal was {a}. What is a {p} percent tip?
    VAT is {p}% on {a}. How much VAT do I pay?
    I get {p} percent off a price of {a}. How much do I save?
    A fee of {p}% on {a}, how much is the fee?
    what would a {p}% tip be on {a}
    I put {p}% of my {a} aside. How much is that?
    a commission of {p} percent on a sale of {a} is how much
{a}-{a}*{p}/100
    A coat costs {a}. What does it cost with {p}% off?
    The price is {a} with a discount of {p} percent. What do I pay?
    A {a} phone is {p}% cheaper today. How much is it?
    I lose {p} percent of {a}. What is left?
    My wage is {a} and {p}% goes to tax. What do I keep?
    The sale takes {p} percent off the {a} sofa. New price?
    It was {a}, it is reduced by {p}%. What is it now?
    If {p}% of {a} seats are taken, how many are free?
{a}+{a}*{p}/100
    What is {a} plus {p}%?
    My bill is {a} and I tip {p} percent. What do I pay?
    The price of {a} rises by {p}%. What is it then?
    {a} plus {p} percent VAT makes how much?
    I earn {a} and get {p}% more. What do I earn then?
    A town of {a} people grows by {p} percent. How many people then?
    What do I owe for {a} with {p}% tip?
    without tax it is {a}, tax is {p}%, what is the full price
    I lent {a} at {p}% for one year. How much do I get back?
{a}*{b}+{c}
    A hall has {b} rows of {a} seats and {c} extra seats. How many seats?
    {b} tickets at {a} and a fee of {c}, what is it altogether?
    I have {a} packs of {b} cards and {c} loose cards. How many cards?
    {b} nights at {a} and {c} for cleaning, what does it cost?
    A taxi costs {c} and {a} a km. What do {b} km cost?
{a}*{b}-{c}
    {b} crates of {a} eggs arrive and {c} eggs break. How many are whole?
    I sell {a} cakes at {b} each and paid {c}. What do I gain?
    {a} rows of {b} trees, but {c} have died. How many live?
    {b} boxes of {a} pens, {c} do not write. How many do?
{a}*{b}+{c}*{d}
    I buy {a} pens for {b} each and {c} books for {d} each. What do I pay?
    {a} adults pay {b} and {c} children pay {d}. How much is it?
    {a} times {b} dollars and {c} times {d} dollars, how much is it in all?
{h}-{k}*{s}
    I pay {k} coffees at {s} each with {h}. What change do I get?
    I have {h} and buy {k} at {s} each. What is left?
{a}*60
    How many minutes are {a} hours?
    How many seconds are in {a} minutes?
    {a} hours in minutes?
    Convert {a} hours to minutes.
    {a} minutes in seconds
    how many minutes do {a} hours have
{a}/60
    How many hours are {a} minutes?
    {a} minutes in hours?
    Convert {a} seconds to minutes.
{k} and a half*60
    How many minutes are {k} and a half hours?
    how many minutes are in {k} and a half hours
    {k} and a half hours in minutes?
{a}*24
    How many hours are {a} days?
    how many hours are there in {a} days
    {a} days in hours?
{a}*7
    How many days are {a} weeks?
    How many days are in {a} weeks?
    {a} weeks, how many days?
{a}*12
    How many months are {a} years?
    How many eggs are {a} dozen?
    How many inches are {a} feet?
    {a} dozen rolls, how many is that?
{a}*1000
    How many metres are {a} km?
    How many grams are {a} kg?
    Convert {a} kg to grams.
    {a} km in metres?
    how many ml in {a} litres
{a}/1000
    How many km are {a} metres?
    How many kg are {a} grams?
    {a} grams in kg?
{a}*100
    How many cm are {a} metres?
    {a} metres in cm?
    How many cents are {a} dollars?
12*{k}-{l}
    {k} dozen eggs arrive and {l} break. How many are left?
    I bake {k} dozen cookies and {l} get eaten. How many remain?
    {k} dozen pencils, {l} are lost, how many have I got?
4*{a}
    A square has sides of {a}. What is its perimeter?
    How many wheels do {a} cars have?
    How many legs have {a} dogs?
2*({a}+{b})
    A rectangle is {a} by {b}. What is its perimeter?
    A fence around a field of {a} m by {b} m, how long?
{a}**2
    A square has sides of {a}. What is its area?
    How many tiles are in a square of {a} by {a}?
({a}+{b})/2
    My marks are {a} and {b}. What is the average?
    It was {a} degrees and {b} degrees. What is the mean?
({a}+{b}+{c})/3
    I scored {a}, {b} and {c}. What is my average?
    My marks are {a}, {b} and {c}. What is the mean mark?
{k}*{s}
    Is it {x} or {y}, {k} times {s}?
    {k} times {s}, is that {x}?
    I think {k} times {s} is {x}, is that right? What is it?
    Somebody says {k} times {s} is {x}. What is it really?
"""
"""An expression a line, then the stories that ask for it."""


def _read(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: dict[str, list[str]] = {}
    form = ""
    for line in text.strip().splitlines():
        if line.startswith(" "):
            found[form].append(line.strip())
        else:
            found.setdefault(form := line, [])
    return tuple((form, tuple(stories)) for form, stories in found.items())


STORIES = _read(TEXT)
