//! Which sample a span belongs to, in the shapes in which traces come: one per step, one per sample.

use rollscope_answers::report::answer;
use rollscope_answers::step::{NONE, StepData};
use rollscope_answers::summary::SampleSummary;
use rollscope_model::build::{NewSpan, SpansBuilder};
use rollscope_model::kinds::Kind;

const MS: i64 = 1_000_000;

#[derive(Clone, Default)]
struct S {
    id: u64,
    trace: u64,
    parent: u64,
    start: i64,
    end: i64,
    name: &'static str,
    phase: Option<&'static str>,
    sample: Option<&'static str>,
    service: &'static str,
}

fn s(id: u64, parent: u64, name: &'static str, start: i64, end: i64) -> S {
    S { id, trace: 1, parent, start, end, name, service: "t", ..S::default() }
}

fn read(spans: &[S]) -> StepData {
    let mut b = SpansBuilder::default();
    for span in spans {
        let resource = format!(r#"{{"service.instance.id":"{}"}}"#, span.service);
        b.push(&NewSpan {
            run_id: "r",
            trace_id: u128::from(span.trace).to_be_bytes(),
            span_id: span.id.to_be_bytes(),
            parent_span_id: (span.parent != 0).then(|| span.parent.to_be_bytes()),
            name: span.name,
            phase: span.phase,
            service: span.service,
            start_ns: span.start * MS,
            end_ns: Some(span.end * MS),
            state: "closed",
            sample_id: span.sample,
            resource: &resource,
            ..NewSpan::default()
        });
    }
    let batch = b.finish().unwrap();
    StepData::read(std::slice::from_ref(&batch), std::slice::from_ref(&batch), &[]).unwrap()
}

/// The sample of each span, by the span's number; empty: none.
fn samples(data: &StepData) -> Vec<(u64, &str)> {
    let id = |row: usize| u64::from_be_bytes(data.ids[row].1);
    let name = |row: usize| if data.sample[row] == NONE { "" } else { data.sample_name(data.sample[row]) };
    let mut out: Vec<(u64, &str)> = (0..data.len()).map(|row| (id(row), name(row))).collect();
    out.sort_unstable();
    out
}

fn a_trace_per_step() -> Vec<S> {
    vec![
        S { phase: Some("step"), ..s(1, 0, "iteration", 0, 100) },
        S { phase: Some("rollout"), ..s(2, 1, "collect", 0, 60) },
        S { sample: Some("a"), ..s(3, 2, "attempt", 1, 50) },
        s(4, 3, "generate", 2, 40),
        S { sample: Some("b"), ..s(5, 2, "attempt", 1, 20) },
        s(6, 5, "generate", 2, 19),
        S { phase: Some("train"), ..s(7, 1, "learn", 60, 95) },
        s(8, 7, "forward_backward", 61, 90),
    ]
}

#[test]
fn in_a_trace_per_step_only_what_is_below_a_sample_is_its() {
    let mut data = read(&a_trace_per_step());
    let wanted = [(1, ""), (2, ""), (3, "a"), (4, "a"), (5, "b"), (6, "b"), (7, ""), (8, "")];
    assert_eq!(samples(&data), wanted);
    let (summary, answers, _) = answer(Some(0), &mut data);
    let phases: Vec<(&str, i64)> = answers.phases.iter().map(|p| (p.name.as_str(), p.ns / MS)).collect();
    assert_eq!(phases, [("collect", 60), ("learn", 35), ("between phases", 5)]);
    assert_eq!(answers.phases[0].kind, Kind::Rollout, "as its sender says, whatever its name");
    let took = |s: &SampleSummary| (s.id.clone(), ((s.end - s.start) * 1e3).round() as i64);
    let took: Vec<(String, i64)> = summary.samples.iter().map(took).collect();
    assert_eq!(took, [("a".to_string(), 49), ("b".to_string(), 19)]);
    let train = answers.critical_path.totals.iter().filter(|t| t.kind == Kind::Train).map(|t| t.ns / MS).sum::<i64>();
    assert_eq!(train, 35);
}

#[test]
fn one_sample_in_a_step_takes_nothing_from_the_step() {
    let mut spans = a_trace_per_step();
    spans.retain(|s| s.id != 5 && s.id != 6);
    assert_eq!(samples(&read(&spans)), [(1, ""), (2, ""), (3, "a"), (4, "a"), (7, ""), (8, "")]);
}

#[test]
fn a_trace_about_one_sample_is_its_own_down_to_the_engine() {
    // slime's shape: the sample is named somewhere, the engine's spans name nothing, and one lost its parent.
    let mut spans = vec![
        s(1, 0, "generate_and_rm", 0, 50),
        S { sample: Some("a"), ..s(2, 1, "sglang_generate", 1, 40) },
        s(3, 2, "decode Req 1", 2, 39),
        s(4, 99, "decode_loop", 3, 38),
    ];
    assert_eq!(samples(&read(&spans)), [(1, "a"), (2, "a"), (3, "a"), (4, "a")]);
    // Another sample in the same trace: what is above both belongs to neither, what lost its parent to nobody.
    spans.push(S { sample: Some("b"), ..s(5, 1, "sglang_generate", 1, 45) });
    assert_eq!(samples(&read(&spans)), [(1, ""), (2, "a"), (3, "a"), (4, ""), (5, "b")]);
}

#[test]
fn a_gateway_is_no_engine() {
    // Three requests go through a gateway, to engines that send one span each. That of the last one is lost.
    let mut spans = vec![S { phase: Some("step"), ..s(1, 0, "iteration", 0, 100) }];
    for (n, (sample, engine)) in [("a", "vllm-0"), ("b", "vllm-1"), ("c", "vllm-0")].into_iter().enumerate() {
        let first = 10 * (n as u64 + 1);
        spans.push(S { sample: Some(sample), ..s(first, 1, "attempt", 1, 50) });
        spans.push(s(first + 1, first, "generate", 2, 40));
        spans.push(S { service: "gateway", ..s(first + 2, first + 1, "POST /generate", 3, 39) });
        spans.push(S { service: engine, ..s(first + 3, first + 2, "llm_request", 4, 38) });
    }
    spans.pop();
    let (summary, ..) = answer(Some(0), &mut read(&spans));
    let engines: Vec<&str> = summary.requests.iter().map(|r| summary.key(r.engine)).collect();
    assert_eq!(engines, ["vllm-0", "vllm-1", ""]);
    // Where nobody is known behind it, it is what serves.
    spans.retain(|span| span.name != "llm_request");
    let (summary, ..) = answer(Some(0), &mut read(&spans));
    assert!(summary.requests.iter().all(|r| summary.key(r.engine) == "gateway"));
}
