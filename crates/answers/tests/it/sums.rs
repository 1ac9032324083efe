//! Sums add up, exactly or to the last bit of a double; and the order of arrival does not matter.

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use rollscope_answers::breakdown::own_times;
use rollscope_answers::critical_path::walk;
use rollscope_answers::difference::{Side, difference};
use rollscope_answers::phases::phases;
use rollscope_answers::report::answer;
use rollscope_answers::samples::sample_times;
use rollscope_answers::step::StepData;
use rollscope_demo::{DemoOptions, Generator, Plant};
use rollscope_model::Table;

use crate::support::{Chance, answers, read};

fn small(seed: u64) -> DemoOptions {
    DemoOptions {
        planted: vec![Plant::ClockSkew { step: 1, engine: 1, ms: 700.0 }],
        ..DemoOptions::load(seed, 3, 24, 6)
    }
}

#[test]
fn parts_of_samples_phases_and_the_path_add_up_exactly() {
    for seed in 0..4 {
        let mut generator = Generator::new(small(seed));
        for step in 0..3 {
            let mut data = read(&generator.step(step).unwrap());
            let times = sample_times(&mut data);
            assert_eq!(times.times.len(), 24);
            for time in times.times.iter().flatten() {
                assert_eq!(time.parts.iter().sum::<i64>(), time.length());
                assert!(time.parts.iter().all(|p| *p >= 0), "{:?}", time.parts);
            }
            let wall = data.step_end - data.step_start;
            assert_eq!(phases(&data, &[], &[]).iter().map(|p| p.ns).sum::<i64>(), wall);
            let path = walk(&data);
            assert_eq!(path.iter().map(|s| s.end - s.start).sum::<i64>(), wall);
            assert!(path.windows(2).all(|w| w[0].end == w[1].start), "the path has no gaps");
            assert!(path.iter().all(|s| s.slack >= 0 && s.slack <= s.end - s.start));
            let mut order: Vec<u32> = (0..data.len() as u32).collect();
            order.sort_by_key(|r| (data.start[*r as usize], data.end[*r as usize]));
            assert!(own_times(&data, &order).iter().all(|t| *t >= 0));
        }
    }
}

#[test]
fn busy_and_idle_make_workers_times_wall_and_differences_the_difference() {
    let mut generator = Generator::new(small(9));
    let (_, first, a) = answers(&generator.step(0).unwrap());
    let (_, _, b) = answers(&generator.step(1).unwrap());
    let idle = &first.idle;
    let close = |x: f64, y: f64| (x - y).abs() < 1e-6;
    assert!(idle.workers > 8, "{}", idle.workers);
    assert!(close(idle.busy_s + idle.idle_s, idle.workers as f64 * idle.wall_s));
    assert!(close(idle.why.iter().map(|w| w.seconds).sum(), idle.idle_s));
    for worker in &idle.by_worker {
        assert!(close(worker.why.iter().map(|w| w.seconds).sum(), worker.idle_s), "{worker:?}");
    }
    for straggler in &first.stragglers.tail {
        let more: f64 = straggler.why.iter().map(|w| w.more_s).sum();
        assert!(close(more, straggler.seconds - first.stragglers.median_s), "{straggler:?}");
    }
    let side = |name: &str, shape| Side { name: name.to_string(), steps: vec![shape], others: Vec::new() };
    let d = difference(&side("a", &a), &side("b", &b));
    assert!(close(d.changes.iter().map(|c| c.change_s).sum(), d.change_s), "{}", d.text);
    assert!(close(d.change_s, b.wall_s - a.wall_s));
}

/// The rows of a batch in another order, in several batches.
fn shuffled(batch: &RecordBatch, seed: u64) -> Vec<RecordBatch> {
    let mut chance = Chance::new(seed);
    let mut rows: Vec<u32> = (0..batch.num_rows() as u32).collect();
    for i in (1..rows.len()).rev() {
        rows.swap(i, chance.below(i + 1));
    }
    rows.chunks(1000).map(|part| take_record_batch(batch, &UInt32Array::from(part.to_vec())).unwrap()).collect()
}

#[test]
fn the_order_of_arrival_does_not_matter() {
    let generated = Generator::new(small(3)).step(1).unwrap();
    let spans = generated.batch(Table::Spans).unwrap();
    let samples = generated.batch(Table::Samples).unwrap();
    let told = |spans: &[RecordBatch], samples: &[RecordBatch]| {
        let mut data = StepData::read(spans, spans, samples).unwrap();
        let (summary, answers, shape) = answer(Some(1), &mut data);
        let judge = rollscope_answers::findings::Judge::new(vec![&summary]);
        let found = judge.findings(0);
        let json = serde_json::to_string_pretty(&(answers, found)).unwrap();
        (json, format!("{:?}", shape))
    };
    let straight = told(std::slice::from_ref(spans), std::slice::from_ref(samples));
    for seed in 1..4 {
        let (json, shape) = told(&shuffled(spans, seed), &shuffled(samples, seed + 10));
        for (a, b) in straight.0.lines().zip(json.lines()) {
            assert_eq!(a, b);
        }
        assert_eq!(straight.1, shape);
    }
}
