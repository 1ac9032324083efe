"""Random queries, answered by rollscope and by DuckDB over the same rows: `python tests/sql_differential.py --minutes 10`.

The rows are sent to a server, half of them before a restart, so that queries read segments and the live tail. DuckDB gets them from
the same Python objects. After some hundred queries, others take their place. A query is made of what means the same in both systems. What does not, and is therefore left out:

- `/` of integers (DuckDB: a double), `%` and division by 0 (DuckDB: null), sums beyond 64 bits (DuckDB: 128 bits)
- casts of doubles to integers (DuckDB rounds, DataFusion truncates) and to text (different digits), `median` of integers (the same)
- casts of text that is not a plain number (DuckDB takes spaces, exponents and fractions)
- ranks as they are: of DataFusion they are unsigned, and an unsigned and a signed number together a decimal, whose average has four more digits
- `-0.0` (equal to 0 in DuckDB, less than 0 in DataFusion): 0.0 is added to what may be it
- the place of nulls without `nulls first` or `nulls last`, and `limit` without a total order
- `lower` and `upper` of letters whose case changes their length
"""

import argparse
import math
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow
import requests

from conftest import Server
from otlp import attribute, request, span

BASE_NS = 1_700_000_000_000_000_000
# Other rows after so many queries, and how many there may be.
QUERIES_PER_TABLE = 400
SIZES = [0, 1, 2, 17, 60, 60, 300, 2000]
TEXTS = ["", "a", "A", "ab", "abc", "b", "Hello World", "x_y", "50%", "it's", "é", "naïve", "日本", "😀", "a,b,c", " pad ", "0", "12", "-7"]
PHASES = [None, "rollout", "reward", "train", "tool"]
NAMES = ["generate", "decode", "prefill", "tool call", "a", "abc"]

# Columns of the test's view of `spans`, with what rollscope calls them.
COLUMNS = {
    "id": ("int", "attr_int(attrs, 'id')"),
    "i": ("int", "attr_int(attrs, 'i')"),
    "f": ("float", "attr_num(attrs, 'f')"),
    "t": ("text", "attr_str(attrs, 't')"),
    "b": ("bool", "attr_bool(attrs, 'b')"),
    "name": ("text", "name"),
    "phase": ("text", "phase"),
    "step": ("int", "step"),
    "status": ("text", "status"),
    "start": ("int", f"start_ns - {BASE_NS}"),
    "took": ("int", "end_ns - start_ns"),
}


def make_rows(dice, count):
    rows = []
    for number in range(count):
        def maybe(value):
            return None if dice.random() < 0.2 else value
        rows.append({
            "id": number,
            "i": maybe(dice.choice([0, 1, -1, 2, 3, 5, 7, 100, -40, dice.randrange(-1000, 1000)])),
            "f": maybe(dice.choice([0.0, 0.5, -1.5, 1e9, 1e-9, 3.25, round(dice.uniform(-10, 10), 3)])),
            "t": maybe(dice.choice(TEXTS)),
            "b": maybe(dice.random() < 0.5),
            "name": dice.choice(NAMES),
            "phase": dice.choice(PHASES),
            "step": maybe(dice.randrange(4)),
            "status": dice.choice(["unset", "ok", "error"]),
            "start": dice.randrange(0, 1000) * 1000,
            "took": dice.randrange(0, 50),
        })
    return rows


def to_span(row):
    fields = {"id": row["id"]} | {k: row[k] for k in ("i", "f", "t", "b") if row[k] is not None}
    if row["phase"] is not None:
        fields["rl.phase"] = row["phase"]
    if row["step"] is not None:
        fields["rl.step"] = row["step"]
    start = BASE_NS + row["start"]
    status = {"unset": 0, "ok": 1, "error": 2}[row["status"]]
    made = span(row["id"], name=row["name"], start_time_unix_nano=start, end_time_unix_nano=start + row["took"],
                attributes=[attribute(key, value) for key, value in fields.items()])
    made.status.code = status
    return made


def send(server, rows):
    for at in range(0, len(rows), 16):
        message = request([to_span(row) for row in rows[at:at + 16]])
        answer = requests.post(server.http + "/v1/traces", data=message.SerializeToString(),
                               headers={"content-type": "application/x-protobuf"}, timeout=30)
        assert answer.ok, answer.text


class Query:
    """One random query."""

    def __init__(self, dice):
        self.dice = dice
        self.depth = 0
        self.number = 0
        # A sum of doubles depends on the order, so such a value must not decide anything.
        self.inexact = False

    def fresh(self):
        self.number += 1
        return f"c{self.number}"

    def one(self, *choices):
        return self.dice.choice(choices)

    def chance(self, share):
        return self.dice.random() < share

    # Expressions over columns: [(name, type)].

    def column(self, kind, columns):
        fit = [name for name, of in columns if of == kind]
        return self.dice.choice(fit) if fit else None

    def expr(self, kind, columns, depth=0):
        if depth > 3 or self.chance(0.35):
            found = self.column(kind, columns)
            if found and self.chance(0.85):
                return found
            return self.literal(kind)

        def inner(of=kind):
            return self.expr(of, columns, depth + 1)

        any_kind = self.one("int", "text", "bool", "float")
        general = [
            lambda: f"case when {inner('bool')} then {inner()} else {inner()} end",
            lambda: f"case when {inner('bool')} then {inner()} end",
            lambda: f"coalesce({inner()}, {inner()})",
            lambda: f"nullif({inner()}, {inner()})",
            lambda: f"case {inner(any_kind)} when {self.literal(any_kind)} then {inner()} else {inner()} end",
        ]
        return self.dice.choice(general + getattr(self, kind)(inner))()

    def literal(self, kind):
        if self.chance(0.06):
            return f"cast(null as {SQL_TYPES[kind]})"
        if kind == "int":
            return str(self.one(0, 1, 2, 3, 7, 100)) if self.chance(0.8) else f"(-{self.one(1, 5, 40)})"
        if kind == "float":
            return f"cast({self.one('0.5', '1.5', '3.25', '10.0', '-2.0')} as double)"
        if kind == "bool":
            return self.one("true", "false")
        return "'" + self.dice.choice(TEXTS).replace("'", "''") + "'"

    def int(self, inner):
        return [
            lambda: f"({inner()} + {inner()})",
            lambda: f"({inner()} - {inner()})",
            lambda: f"({inner()} % {self.one(2, 3, 7)})",
            lambda: f"abs({inner()})",
            lambda: f"length({inner('text')})",
            lambda: f"strpos({inner('text')}, {self.literal('text')})",
            lambda: f"greatest({inner()}, {inner()})",
            lambda: f"least({inner()}, {inner()})",
            lambda: f"cast({inner('bool')} as bigint)",
        ]

    def float(self, inner):
        return [
            lambda: f"({inner()} + {inner()})",
            lambda: f"({inner()} * {self.literal('float')} + 0.0)",
            lambda: f"(cast({inner('int')} as double) / {self.one('2.0', '8.0')})",
            lambda: f"cast({inner('int')} as double)",
            lambda: f"(floor({inner()}) + 0.0)",
            lambda: f"(ceil({inner()}) + 0.0)",
            lambda: f"(round({inner()}) + 0.0)",
            lambda: f"abs({inner()})",
            lambda: f"sqrt(abs({inner()}))",
        ]

    def text(self, inner):
        return [
            lambda: f"({inner()} || {inner()})",
            lambda: f"concat({inner()}, {inner()})",
            lambda: f"lower({inner()})",
            lambda: f"upper({inner()})",
            lambda: f"substr({inner()}, {self.one(1, 2, 3)}, {self.one(0, 1, 2, 10)})",
            lambda: f"replace({inner()}, {self.one(chr(39) + 'a' + chr(39), chr(39) + 'l' + chr(39))}, {self.literal('text')})",
            lambda: f"trim({inner()})",
            lambda: f"ltrim({inner()})",
            lambda: f"left({inner()}, {self.one(0, 1, 3)})",
            lambda: f"right({inner()}, {self.one(0, 1, 3)})",
            lambda: f"split_part({inner()}, ',', {self.one(1, 2, 4)})",
            lambda: f"reverse({inner()})",
            lambda: f"cast({inner('int')} as varchar)",
            lambda: f"cast({inner('bool')} as varchar)",
            lambda: f"concat_ws('-', {inner()}, {inner()})",
            lambda: f"translate({inner()}, 'ab', 'ba')",
            lambda: f"regexp_replace({inner()}, '[aeiou]+', '#', 'g')",
        ]

    def bool(self, inner):
        kind = self.one("int", "text", "float", "int")
        compare = self.one("=", "<>", "<", "<=", ">", ">=", "is distinct from", "is not distinct from")
        pattern = self.one("a%", "%b", "%a%", "_b%", "", "%", "x!_y", "%日%")
        return [
            lambda: f"({inner(kind)} {compare} {inner(kind)})",
            lambda: f"({inner(kind)} {compare} {inner(kind)})",
            lambda: f"({inner()} and {inner()})",
            lambda: f"({inner()} or {inner()})",
            lambda: f"(not {inner()})",
            lambda: f"({inner(kind)} is null)",
            lambda: f"({inner(kind)} is not null)",
            lambda: f"({inner()} is {self.one('', 'not ')}{self.one('true', 'false')})",
            lambda: f"({inner(kind)} {self.one('', 'not ')}in ({', '.join(self.literal(kind) for _ in range(self.one(1, 3, 5)))}))",
            lambda: f"({inner(kind)} {self.one('', 'not ')}between {inner(kind)} and {inner(kind)})",
            lambda: f"({inner('text')} {self.one('like', 'not like', 'ilike')} '{pattern}')",
            lambda: f"starts_with({inner('text')}, {self.literal('text')})",
            lambda: f"contains({inner('text')}, {self.literal('text')})",
        ]

    def aggregate(self, columns):
        kind = self.one("int", "float", "text", "bool", "int")
        of = self.expr(kind, columns, 2)
        choices = [("int", "count(*)"), ("int", f"count({of})"), ("int", f"count(distinct {of})")]
        if kind != "bool":
            choices += [(kind, f"min({of})"), (kind, f"max({of})")]
        if kind == "int":
            choices += [("int", f"cast(sum({of}) as bigint)"), ("float", f"avg({of})"), ("int", f"cast(sum(distinct {of}) as bigint)")]
        if kind == "float":
            choices += [("float", f"sum({of})"), ("float", f"avg({of})"), ("float", f"stddev({of})"), ("float", f"var_pop({of})"),
                        ("float", f"median({of})")]
        if kind == "bool":
            choices += [("bool", f"bool_and({of})"), ("bool", f"bool_or({of})")]
        of_kind, text = self.dice.choice(choices)
        if of_kind == "float" and not text.startswith(("min", "max")):
            self.inexact = True
        if self.chance(0.25):
            text_filter = f" filter (where {self.expr('bool', columns, 2)})"
            if text.startswith("cast("):
                text = text.replace(" as bigint)", text_filter + " as bigint)") if text.count(" as bigint)") == 1 else text
            else:
                text += text_filter
        return of_kind, text

    def window(self, columns, key):
        """Over a total order: `key` is unique."""
        kind = self.one("int", "text", "float")
        of = self.expr(kind, columns, 3)
        partition = f"partition by {self.expr(self.one('text', 'int', 'bool'), columns, 3)} " if self.chance(0.6) else ""
        order = f"order by {self.expr(self.one('int', 'text'), columns, 3)} {self.one('asc', 'desc')} nulls {self.one('first', 'last')}, {key}"
        frame = self.one("", " rows between 2 preceding and current row", " rows between unbounded preceding and unbounded following",
                         " rows between 1 following and 3 following")
        plain = f"over ({partition}{order})"
        framed = f"over ({partition}{order}{frame})"
        choices = [*(("int", f"cast({rank} {plain} as bigint)") for rank in
                     ("row_number()", "rank()", "dense_rank()", f"ntile({self.one(2, 3)})")),
                   (kind, f"lag({of}, {self.one(1, 2)}) {plain}"), (kind, f"lead({of}) {plain}"),
                   (kind, f"first_value({of}) {framed}"), (kind, f"last_value({of}) {framed}"),
                   ("int", f"count({of}) {framed}")]
        if kind != "float":
            choices += [(kind, f"min({of}) {framed}"), (kind, f"max({of}) {framed}")]
        if kind == "int":
            choices.append(("int", f"cast(sum({of}) {framed} as bigint)"))
        return self.dice.choice(choices)

    # Relations: text and columns. `key` is a unique column, or none.

    def source(self):
        if self.depth < 2 and self.chance(0.35):
            self.depth += 1
            text, columns, key = self.select()
            self.depth -= 1
            return f"({text})", columns, key
        return "t", [(name, kind) for name, (kind, _) in COLUMNS.items()], "id"

    def select(self):
        if self.depth < 2 and self.chance(0.1):
            return self.set_operation()
        alias = self.fresh()
        text, columns, key = self.source()
        columns = [(f"{alias}.{name}", kind) for name, kind in columns]
        key = f"{alias}.{key}" if key else None
        text = f"from {text} as {alias}"
        if self.depth < 2 and self.chance(0.3):
            text, columns = self.join(text, columns, key)
            key = None
        if self.chance(0.6):
            text += f" where {self.condition(columns)}"
        grouped = self.chance(0.35)
        return self.grouped(text, columns) if grouped else self.plain(text, columns, key)

    def condition(self, columns):
        if self.chance(0.3) and (both := self.of_one_name(columns)):
            return self.one(f"{both[0]} {self.one('=', '<>', '<', '>=')} {both[1]}", f"{both[1]} is distinct from {both[0]}",
                            f"coalesce({both[0]}, {both[1]}) = {both[1]}")
        kind = self.one("int", "text")
        found = self.column(kind, columns)
        if found and self.depth < 2 and self.chance(0.15):
            other = self.dice.choice([name for name, (of, _) in COLUMNS.items() if of == kind])
            inner = f"select x.{other} from t as x where {self.expr('bool', [(f'x.{n}', k) for n, (k, _) in COLUMNS.items()], 2)}"
            return self.one(f"{found} in ({inner})", f"{found} not in ({inner})",
                            f"exists (select 1 from t as x where x.{other} = {found})",
                            f"not exists (select 1 from t as x where x.{other} = {found})",
                            f"{found} = (select max(x.{other}) from t as x)")
        return self.expr("bool", columns)

    def of_one_name(self, columns):
        """Columns of both sides of a join that have the same name."""
        sides = {}
        for name, _ in columns:
            sides.setdefault(name.rpartition(".")[2], []).append(name)
        twice = [names for names in sides.values() if len(names) == 2]
        return self.dice.choice(twice) if twice else None

    def join(self, text, columns, key):
        alias = self.fresh()
        other = [(f"{alias}.{name}", kind) for name, (kind, _) in COLUMNS.items()]
        kind = self.one("int", "text")
        left, right = self.column(kind, columns), self.column(kind, other)
        if not left:
            return f"{text} cross join (select * from t where id < 3) as {alias}", columns + other
        how = self.one("join", "left join", "right join", "full join")
        on = f"{left} = {right}"
        if self.chance(0.3) and how != "full join":
            on += f" and {self.expr('bool', other, 2)}"
        # Few rows on one side, or the other joins multiply them.
        return f"{text} {how} (select * from t where id % 5 = 0) as {alias} on {on}", columns + other

    def plain(self, text, columns, key):
        out, kinds, kept_key = [], [], None
        if key and self.chance(0.7):
            kept_key = self.fresh()
            out.append(f"{key} as {kept_key}")
            kinds.append((kept_key, "int"))
        for _ in range(self.dice.randrange(1, 4)):
            name = self.fresh()
            if key and self.chance(0.2):
                kind, made = self.window(columns, key)
            else:
                kind = self.one("int", "float", "text", "bool")
                made = self.expr(kind, columns)
            out.append(f"{made} as {name}")
            kinds.append((name, kind))
        distinct = "distinct " if self.chance(0.15) else ""
        text = f"select {distinct}{', '.join(out)} {text}"
        return text + self.tail(len(out)), kinds, kept_key

    def grouped(self, text, columns):
        keys = [(self.fresh(), kind, self.expr(kind, columns, 2)) for kind in
                [self.one("int", "text", "bool") for _ in range(self.dice.randrange(0, 3))]]
        aggregates = [(self.fresh(), *self.aggregate(columns)) for _ in range(self.dice.randrange(1, 4))]
        out = [f"{made} as {name}" for name, _, made in keys + aggregates]
        text = f"select {', '.join(out)} {text}"
        if keys:
            # In grouping sets DataFusion takes a position for a number, and a literal is no column.
            several = len({made for _, _, made in keys}) == len(keys) and all(COLUMN.search(made) for _, _, made in keys)
            how = self.one("", "", "rollup", "cube") if several else ""
            grouping = [made if how else str(n + 1) for n, (_, _, made) in enumerate(keys)]
            text += f" group by {how}({', '.join(grouping)})" if how else f" group by {', '.join(grouping)}"
            if self.chance(0.3):
                text += f" having count(*) {self.one('>', '<=')} {self.one(1, 2, 5)}"
        kinds = [(name, kind) for name, kind, _ in keys + aggregates]
        return text + self.tail(len(out)), kinds, None

    def tail(self, width):
        if self.inexact or not self.chance(0.3):
            return ""
        order = ", ".join(f"{n + 1} {self.one('asc', 'desc')} nulls {self.one('first', 'last')}" for n in range(width))
        return f" order by {order} limit {self.one(0, 1, 5, 20)}" + (f" offset {self.one(1, 3)}" if self.chance(0.3) else "")

    def set_operation(self):
        self.depth += 2
        kinds = [self.one("int", "text", "bool") for _ in range(self.dice.randrange(1, 3))]
        names = [self.fresh() for _ in kinds]

        def side():
            text, columns, _ = self.source()
            alias = self.fresh()
            columns = [(f"{alias}.{name}", kind) for name, kind in columns]
            made = ", ".join(f"{self.expr(kind, columns)} as {name}" for kind, name in zip(kinds, names, strict=True))
            return f"select {made} from {text} as {alias}"
        text = f"({side()}) {self.one('union', 'union all', 'intersect', 'except')} ({side()})"
        self.depth -= 2
        return f"select * from ({text}) as {self.fresh()}", list(zip(names, kinds, strict=True)), None


COLUMN = re.compile(r"\bc\d+\.\w+")
SQL_TYPES = {"int": "bigint", "float": "double", "text": "varchar", "bool": "boolean"}


def make_query(seed):
    query = Query(random.Random(seed))
    return query.select()[0]


def simple(value):
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return value + 0.0
    return value


def sort_key(row):
    """Doubles may differ in their last digits, so they are compared by fewer."""
    def part(value):
        if value is None:
            return (0, "")
        if isinstance(value, float):
            return (1, f"{value:.6e}")
        return (2, str(value))
    return [part(value) for value in row]


def same(ours, theirs):
    if len(ours) != len(theirs):
        return False
    # Doubles that differ in late digits only may be sorted differently below.
    if Counter(ours) == Counter(theirs):
        return True
    for left, right in zip(sorted(ours, key=sort_key), sorted(theirs, key=sort_key), strict=True):
        for a, b in zip(left, right, strict=True):
            if isinstance(a, float) and isinstance(b, float):
                if not (math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) or (math.isnan(a) and math.isnan(b))):
                    return False
            elif a != b or isinstance(a, bool) != isinstance(b, bool):
                return False
    return True


class Differential:
    def __init__(self, folder, rows=60, seed=1, counts=None, refusals=None):
        dice = random.Random(seed)
        self.rows = make_rows(dice, rows)
        self.server = Server(folder / "data")
        send(self.server, self.rows[:rows // 2])
        self.server.stop()
        self.server.start()
        send(self.server, self.rows[rows // 2:])
        # Again: rows that are there already count once.
        send(self.server, self.rows[::7])
        self.duck = duckdb.connect()
        kinds = {"int": pyarrow.int64(), "float": pyarrow.float64(), "text": pyarrow.string(), "bool": pyarrow.bool_()}
        columns = {name: pyarrow.array([row[name] for row in self.rows], kinds[kind]) for name, (kind, _) in COLUMNS.items()}
        self.duck.register("t", pyarrow.table(columns))
        self.view = ", ".join(f"{sql} as {name}" for name, (_, sql) in COLUMNS.items())
        self.session = requests.Session()
        self.counts = counts or {"tables": 0, "queries": 0, "rows": 0, "ours refused": 0, "theirs refused": 0}
        self.counts["tables"] += 1
        self.refusals = {} if refusals is None else refusals

    def stop(self):
        self.server.stop()

    def ours(self, query):
        text = f"with t as (select {self.view} from spans) {query}"
        answer = self.session.post(self.server.url + "/api/v1/sql", json={"query": text, "format": "arrow"}, timeout=60)
        if not answer.ok:
            return None, answer
        table = pyarrow.ipc.open_stream(answer.content).read_all()
        return [tuple(row) for row in zip(*[column.to_pylist() for column in table.columns], strict=True)], answer

    def check(self, query):
        """Returns what is wrong, if anything is."""
        self.counts["queries"] += 1
        try:
            theirs = self.duck.execute(query).fetchall()
        except duckdb.Error as error:
            theirs, reason = None, str(error).splitlines()[0]
        ours, answer = self.ours(query)
        if theirs is None:
            self.counts["theirs refused"] += 1
            self.refusals.setdefault("DuckDB: " + reason[:90], query)
            return None
        if ours is None:
            self.counts["ours refused"] += 1
            self.refusals.setdefault(f"rollscope: {answer.status_code} {answer.text[:200]}", query)
            return None if answer.status_code < 500 else f"{answer.status_code} {answer.text}"
        self.counts["rows"] += len(ours)
        if same([tuple(map(simple, row)) for row in ours], [tuple(map(simple, row)) for row in theirs]):
            return None
        return f"rollscope: {sorted(ours, key=sort_key)[:20]}\n  DuckDB:    {sorted(theirs, key=sort_key)[:20]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--queries", type=int, default=10**9, help="stop after this many")
    parser.add_argument("--seed", type=int, default=0, help="of the first query")
    parser.add_argument("--refusals", action="store_true", help="print what one of the systems refused, with an example")
    args = parser.parse_args()
    deadline = time.monotonic() + args.minutes * 60
    wrong, counts, refusals = 0, None, {}
    at, end = args.seed, args.seed + args.queries
    while at < end and time.monotonic() < deadline:
        with tempfile.TemporaryDirectory() as folder:
            first = at - at % QUERIES_PER_TABLE
            size = random.Random(first).choice(SIZES)
            both = Differential(Path(folder), size, first, counts, refusals)
            counts = both.counts
            for seed in range(at, min(end, first + QUERIES_PER_TABLE)):
                if time.monotonic() >= deadline:
                    break
                query = make_query(seed)
                problem = both.check(query)
                if problem:
                    wrong += 1
                    print(f"seed {seed}, {size} rows: {query}\n  {problem}\n", flush=True)
            at = first + QUERIES_PER_TABLE
            both.stop()
    if args.refusals:
        for reason, query in refusals.items():
            print(f"{reason}\n    {query}\n")
    print(", ".join(f"{value} {name}" for name, value in (counts or {}).items()) + f", {wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
