//! The vocabulary in the languages of the page and of the Python package.

use std::fmt::{Debug, Write};

use rollscope_model::Table;
use rollscope_model::figures::TAIL_BEGINS;
use rollscope_model::ids::{span_id_from_text, trace_id_from_text};
use rollscope_model::kinds::{Kind, LOOKED_AT, LOOKS, NAMES, Rule, SAID, SAID_ROLLOUT, classify};
use rollscope_model::names::{self, event, reserved};
use rollscope_model::{limits, pd};

use super::up_to_date;

const HOW: &str = "made by a test of crates/model. Stale: UPDATE=1 cargo test --workspace.";

fn limits() -> [(&'static str, &'static str, usize); 5] {
    [
        ("CONVERSATION_BYTES", "Messages and metadata of one conversation, as JSON.", limits::CONVERSATION_BYTES),
        ("MEDIA_BYTES", "One image or other file.", limits::MEDIA_BYTES),
        ("MESSAGE_BYTES", "One OTLP message after decompression, by default.", limits::MESSAGE_BYTES),
        ("RUN_ID_BYTES", "A run's id.", limits::RUN_ID_BYTES),
        ("TRACE_LEVEL", "The highest trace level; 0 is off.", limits::TRACE_LEVEL.into()),
    ]
}

/// As TypeScript and Python write it. No name has a quote in it.
fn text(text: &str) -> String {
    assert!(!text.contains(['\'', '\\', '\n']), "{text}");
    format!("'{text}'")
}

#[test]
fn the_pages_kinds_are_up_to_date() {
    let mut out = format!("// Kinds of work, from crates/names/src/kinds.rs; {HOW}\n\n");
    out.push_str("export interface Kind {\n  key: KindKey;\n  label: string;\n  letter: string;\n  dark: string;\n  light: string;\n}\n");
    let keys: Vec<String> = LOOKS.iter().map(|look| text(look.name)).collect();
    write!(out, "export type KindKey = {};\n\n", keys.join(" | ")).unwrap();
    out.push_str("/** In the order of a step, as legends show them. */\nexport const KINDS: readonly Kind[] = [\n");
    for look in LOOKS {
        let (key, label, letter) = (text(look.name), text(look.label), text(&look.letter.to_string()));
        let (dark, light) = (text(look.dark), text(look.light));
        writeln!(out, "  {{ key: {key}, label: {label}, letter: {letter}, dark: {dark}, light: {light} }},").unwrap();
    }
    out.push_str("];\n\n/** What senders say, in lower case and with `_` for spaces and dashes. */\n");
    out.push_str("export const SAID: ReadonlyMap<string, KindKey> = new Map([\n");
    for (word, kind) in SAID {
        writeln!(out, "  [{}, {}],", text(word), text(kind.name())).unwrap();
    }
    out.push_str("]);\n\n/** Said of everything in a rollout: the name says more, if it says anything. */\n");
    write!(out, "export const SAID_ROLLOUT = {};\n\n", text(SAID_ROLLOUT)).unwrap();
    out.push_str("/** What a name in lower case must be like. The first that fits counts. */\n");
    out.push_str("export const NAMES: readonly (readonly ['is' | 'starts' | 'has', string, KindKey])[] = [\n");
    for (rule, kind) in NAMES {
        let (how, part) = match rule {
            Rule::Is(part) => ("is", part),
            Rule::Starts(part) => ("starts", part),
            Rule::Has(part) => ("has", part),
        };
        writeln!(out, "  ['{how}', {}, {}],", text(part), text(kind.name())).unwrap();
    }
    write!(out, "];\n\n/** Characters of a name that are looked at. */\nexport const LOOKED_AT = {LOOKED_AT};\n")
        .unwrap();
    up_to_date("ui/src/generated/kinds.ts", &out);
}

/// The page finds kinds by the same rules, in its own code: `ui/tests/unit/kinds.test.ts` compares the two.
#[test]
fn what_the_page_compares_its_kinds_with_is_up_to_date() {
    let names = NAMES.iter().map(|(rule, _)| match rule {
        Rule::Is(part) | Rule::Starts(part) | Rule::Has(part) => part.to_uppercase(),
    });
    let more = [
        "",
        "whatever",
        "prefill_transfer_queue",
        "sglang_pd_prefill",
        "sglang_generate",
        "generate_and_rm_group",
        "decode Req 2a7c1880",
        "Scheduler [TP 0] [PP 0] [DP 0] (host:abcd1234 | pid:4711)",
        "compute_advantages",
        "tokenizer",
        "evaluate",
        "Ünïcode décode",
    ];
    let long = ["x".repeat(LOOKED_AT) + "decode", "ü".repeat(LOOKED_AT - 6) + "decode", "ü".repeat(LOOKED_AT) + "tool"];
    let names = names.chain(more.map(String::from)).chain(long).chain(pd::SEGMENTS.map(|s| s.span.to_string()));
    let said = SAID.iter().map(|(word, _)| word.replace('_', "-").to_uppercase());
    let said = said.chain(["rollout", " Rollout ", "other", "unheard of", ""].map(String::from));
    let alone = names.clone().map(|name| (name, None));
    let in_rollout = names.map(|name| (name, Some("rollout".to_string())));
    let cases = alone.chain(in_rollout).chain(said.map(|said| ("prefill".to_string(), Some(said))));
    let lines: Vec<String> = cases
        .map(|(name, said)| {
            let said = said.as_deref();
            serde_json::json!([name, said, classify(&name, said).name()]).to_string()
        })
        .collect();
    up_to_date("ui/tests/unit/kinds.json", &format!("[\n{}\n]\n", lines.join(",\n")));
}

#[test]
fn the_pages_columns_are_up_to_date() {
    let mut out = format!("// Columns of every table, from crates/model/src/tables.rs; {HOW}\n\n");
    out.push_str("export const COLUMNS = {\n");
    for table in Table::ALL {
        let columns: Vec<String> = table.schema().fields().iter().map(|field| text(field.name())).collect();
        writeln!(out, "  {}: [{}],", table.name(), columns.join(", ")).unwrap();
    }
    out.push_str("} as const;\n\nexport type Table = keyof typeof COLUMNS;\n");
    out.push_str("export type Column<T extends Table> = (typeof COLUMNS)[T][number];\n");
    up_to_date("ui/src/generated/tables.ts", &out);
}

#[test]
fn the_pages_limits_are_up_to_date() {
    let mut out = format!("// Limits and definitions that several sides share, from crates/names; {HOW}\n");
    for (name, doc, value) in limits() {
        write!(out, "\n/** {doc} */\nexport const {name} = {value};\n").unwrap();
    }
    out.push_str("\n/** Share of a step's samples that have ended when its tail begins. */\n");
    writeln!(out, "export const TAIL_BEGINS = {TAIL_BEGINS};").unwrap();
    up_to_date("ui/src/generated/limits.ts", &out);
}

/// A tuple, one item a line.
fn tuple(out: &mut String, name: &str, items: impl Iterator<Item = String>) {
    writeln!(out, "{name} = (").unwrap();
    items.for_each(|item| writeln!(out, "    {item},").unwrap());
    out.push_str(")\n");
}

/// Python's and Rust's quotes are the same for names without quotes in them.
fn quoted(item: impl Debug + AsRef<str>) -> String {
    text(item.as_ref());
    format!("{item:?}")
}

#[test]
fn the_names_of_the_python_package_are_up_to_date() {
    let mut out = format!("\"\"\"Names and limits that the server has too, from crates/names; {HOW}\"\"\"\n");
    for (name, doc, value) in limits() {
        write!(out, "\n#: {doc}\n{name} = {value}\n").unwrap();
    }
    out.push_str("\n# Attributes of spans and resources.\n");
    for (name, value) in [
        ("RUN_ID", names::RUN_ID[0]),
        ("RUN_NAME", names::RUN_NAME),
        ("PROJECT", names::PROJECT),
        ("SYSTEM", names::SYSTEM),
        ("STEP", names::STEP[0]),
        ("SAMPLE_ID", names::SAMPLE_ID[0]),
        ("GROUP_ID", names::GROUP_ID[0]),
        ("ATTEMPT", names::ATTEMPT[0]),
        ("PHASE", names::PHASE),
        ("STATE", reserved::STATE),
        ("START_ATTRS", reserved::START_ATTRS),
        ("ORIGINAL_TRACE_ID", reserved::ORIGINAL_TRACE_ID),
        ("ORIGINAL_SPAN_ID", reserved::ORIGINAL_SPAN_ID),
        ("ORIGINAL_PARENT_SPAN_ID", reserved::ORIGINAL_PARENT_SPAN_ID),
    ] {
        writeln!(out, "{name} = {}", quoted(value)).unwrap();
    }
    out.push_str("\n# Log records: their event names, and the attributes that have no OTLP name.\n");
    for (name, value) in [
        ("EVENT_RUN", event::RUN),
        ("EVENT_METRICS", event::METRICS),
        ("EVENT_CONVERSATION", event::CONVERSATION),
        ("EVENT_MEDIA", event::MEDIA),
        ("EVENT_STATS", event::STATS),
        ("CONFIG", event::CONFIG),
        ("TAGS", event::TAGS),
        ("STARTED_NS", event::STARTED_NS),
        ("ENDED_NS", event::ENDED_NS),
        ("STATUS", event::STATUS),
        ("ID", event::ID),
        ("KEY", event::KEY),
        ("INDEX", event::INDEX),
        ("METADATA", event::METADATA),
    ] {
        writeln!(out, "{name} = {}", quoted(value)).unwrap();
    }
    out.push_str("\n#: Kinds of work, for `phase`.\n");
    let phases = Kind::ALL.into_iter().filter(|kind| !matches!(kind, Kind::Other));
    tuple(&mut out, "PHASES", phases.map(|kind| quoted(kind.name())));
    out.push_str("\n#: By their numbers in OTLP.\n");
    tuple(&mut out, "SPAN_KINDS", names::KINDS.into_iter().map(quoted));
    tuple(&mut out, "STATUSES", names::STATUSES.into_iter().map(quoted));
    out.push_str(
        "\n#: Prefill and decode of a request: the attribute with the seconds, and the span that stands for it.\n",
    );
    for (side, segments) in pd::SIDES.iter().zip(pd::SEGMENTS.chunks(pd::PER_SIDE)) {
        let pairs = segments.iter().map(|s| format!("({}, {})", quoted(s.key), quoted(s.span)));
        tuple(&mut out, &format!("PD_{}", side.name.to_uppercase()), pairs);
    }
    tuple(&mut out, "PD_SUMMARY", pd::SUMMARY.iter().map(|(key, _)| quoted(key)));
    up_to_date("python/rollscope/_names.py", &out);
}

/// A row of a table in Markdown: what, and names as code.
fn row(out: &mut String, what: &str, names: &[&str]) {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    writeln!(out, "| {what} | {} |", names.join(", ")).unwrap();
}

#[test]
fn the_page_of_names_is_up_to_date() {
    let mut out = String::from("# Names\n\nMade from `crates/names`; a test fails when it is stale.\n");
    out.push_str("\n## Kinds of work\n\nThe kind of a span is what its sender sets in `rl.phase`, else it follows from its name.\n");
    out.push_str("\n| kind | on the page | `rl.phase` |\n|---|---|---|\n");
    for look in LOOKS {
        let mut said: Vec<&str> = SAID.iter().filter(|(_, kind)| *kind == look.kind).map(|(word, _)| *word).collect();
        if look.name == SAID_ROLLOUT {
            said.push(SAID_ROLLOUT);
        }
        row(&mut out, &format!("`{}` | {} {}", look.name, look.letter, look.label), &said);
    }
    out.push_str("\n## Attributes\n\nOf several names, the first that a span or its resource carries is believed.\n");
    out.push_str("\n| meaning | names |\n|---|---|\n");
    for (what, list) in [
        ("run", names::RUN_ID),
        ("step", names::STEP),
        ("sample", names::SAMPLE_ID),
        ("group", names::GROUP_ID),
        ("attempt", names::ATTEMPT),
        ("phase", &[names::PHASE]),
        ("request of the serving engine", names::REQUEST_ID),
        ("host", names::HOST),
        ("process", names::PID),
        ("thread or worker", names::THREAD_LABEL),
        ("prompt tokens", names::PROMPT_TOKENS),
        ("completion tokens", names::COMPLETION_TOKENS),
        ("cached prompt tokens", names::CACHED_TOKENS),
        ("seconds in the engine's queue", names::QUEUE_TIME),
        ("tool", names::TOOL_NAME),
    ] {
        row(&mut out, what, list);
    }
    out.push_str("\n## Ids\n\nIds of other lengths than W3C's become such ids, the same everywhere: a short id is a number and gets leading zeros, ");
    out.push_str("a UUID becomes a span id by the exclusive or of its halves, and anything else is hashed.\n");
    out.push_str("\n| id as it came | trace id | span id |\n|---|---|---|\n");
    for id in ["91543acd788654df", "00112233445566778899aabbccddeeff", "c06f", "sample-7"] {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let (trace, span) = (hex(&trace_id_from_text(id).0), hex(&span_id_from_text(id).0));
        writeln!(out, "| `{id}` | `{trace}` | `{span}` |").unwrap();
    }
    out.push_str("\n## Limits\n\n| limit | value |\n|---|---|\n");
    for (_, doc, value) in limits() {
        let value = if value >= 1 << 20 { format!("{} MiB", value >> 20) } else { value.to_string() };
        writeln!(out, "| {} | {value} |", doc.trim_end_matches('.')).unwrap();
    }
    up_to_date("docs/names.md", &out);
}
