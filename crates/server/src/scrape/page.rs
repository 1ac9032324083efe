//! One target's pages turned into rows. Remembers what every text of a series means, which series the last page had (for
//! stale markers), and the last time of each (for times that go back).

use std::collections::{BTreeMap, HashMap};

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use rollscope_formats::import::prometheus::{self, Limits, MAX_AHEAD_MS, parse_series};
use rollscope_model::build::{NewPoint, SeriesBuilder};
use rollscope_model::names::SCRAPED_RUN;

use super::config::{ScrapeLimits, ScrapeTarget};

/// Prometheus's marker for "this series has ended".
const STALE: f64 = f64::from_bits(0x7ff0_0000_0000_0002);
/// Pages after which a series that did not come again is forgotten.
const FORGET_AFTER: u64 = 100;
/// Series that are remembered, in pages of `max_samples`. Beyond that, only those of the last page are.
const PAGES_REMEMBERED: usize = 4;
/// Reasons that are kept in words.
const MAX_REASONS: usize = 5;

/// What one page gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Samples on the page that could be read.
    pub samples: usize,
    /// Samples that were kept.
    pub kept: usize,
    /// Series that were not there before.
    pub added: usize,
    pub bad_lines: u64,
    pub duplicates: u64,
    /// Times that go back, or that lie too far ahead.
    pub out_of_order: u64,
    /// The first few reasons, each with its line.
    pub reasons: Vec<String>,
}

/// A refused page leaves no trace: what it changed about a series is put back.
struct Before<'t> {
    series: &'t str,
    /// None: it was not known.
    page: Option<u64>,
    last_ms: i64,
    own_times: bool,
}

struct KnownSeries {
    name: String,
    labels: String,
    kind: &'static str,
    /// Number of the last page that had it.
    page: u64,
    last_ms: i64,
    /// The page gives its times itself: then it does not end with a page that lacks it.
    own_times: bool,
}

pub struct Pages {
    run_id: String,
    instance: String,
    /// Labels of the target, `job` and `instance` among them.
    target_labels: BTreeMap<String, String>,
    target_json: String,
    honor_labels: bool,
    ignore_timestamps: bool,
    max_samples: usize,
    limits: Limits,
    known: HashMap<String, KnownSeries>,
    page: u64,
}

impl Pages {
    pub fn new(target: &ScrapeTarget, limits: &ScrapeLimits) -> Self {
        let mut labels = target.labels.clone();
        labels.insert("job".into(), target.job().into());
        labels.insert("instance".into(), target.instance());
        Pages {
            run_id: if target.run.is_empty() { SCRAPED_RUN.into() } else { target.run.clone() },
            instance: target.instance(),
            target_json: serde_json::to_string(&labels).expect("text maps to text"),
            target_labels: labels,
            honor_labels: target.honor_labels,
            ignore_timestamps: target.ignore_timestamps,
            max_samples: limits.max_samples,
            limits: limits.of_series(),
            known: HashMap::new(),
            page: 0,
        }
    }

    /// Rows of a page that came, and of the figures that every scrape has.
    pub fn read_page(
        &mut self,
        text: &str,
        open_metrics: bool,
        at_ms: i64,
        took_s: f64,
    ) -> Result<(RecordBatch, Outcome), String> {
        self.page += 1;
        let mut out = Outcome::default();
        let mut builder = SeriesBuilder::default();
        let (page, limits, known) = (self.page, &self.limits, &mut self.known);
        let (honor_labels, target_labels) = (self.honor_labels, &self.target_labels);
        let (run_id, instance) = (self.run_id.as_str(), self.instance.as_str());
        let ignore_timestamps = self.ignore_timestamps;
        let mut reasons: Vec<String> = Vec::new();
        let mut bad_series = 0u64;
        let mut too_many = false;
        let max_samples = self.max_samples;
        let mut bad_lines = 0u64;
        let reason = |reasons: &mut Vec<String>, text: String| {
            if reasons.len() < MAX_REASONS {
                reasons.push(text);
            }
        };
        let mut line_reasons = Vec::new();
        let mut before: Vec<Before> = Vec::new();
        prometheus::lines(
            text,
            open_metrics,
            limits,
            |line, kinds| {
                if too_many {
                    return;
                }
                if !known.contains_key(line.series) {
                    match parse_series(line.series, limits) {
                        Err(why) => {
                            bad_series += 1;
                            reason(&mut reasons, format!("line {}: {why}", line.number));
                            return;
                        }
                        Ok(series) => {
                            let kind = kinds.of(&series.name);
                            let labels = with_target(series.labels, target_labels, honor_labels);
                            let labels = serde_json::to_string(&labels).expect("text maps to text");
                            let new = KnownSeries {
                                name: series.name,
                                labels,
                                kind,
                                page: 0,
                                last_ms: i64::MIN,
                                own_times: false,
                            };
                            known.insert(line.series.to_string(), new);
                            before.push(Before { series: line.series, page: None, last_ms: 0, own_times: false });
                            out.added += 1;
                        }
                    }
                }
                let series = known.get_mut(line.series).expect("it was put there");
                if series.page == page {
                    out.samples += 1;
                    out.duplicates += 1;
                    reason(&mut reasons, format!("line {}: duplicate sample {}", line.number, series.name));
                    return;
                }
                out.samples += 1;
                if out.samples > max_samples {
                    too_many = true;
                    return;
                }
                let KnownSeries { page: last, last_ms, own_times, .. } = *series;
                if last > 0 {
                    before.push(Before { series: line.series, page: Some(last), last_ms, own_times });
                }
                let own = line.time_ms.filter(|_| !ignore_timestamps);
                let time_ms = own.unwrap_or(at_ms);
                series.page = page;
                series.own_times = own.is_some();
                let repeated = own.is_some() && time_ms == series.last_ms;
                if repeated {
                    // The same sample again: nothing new, nothing wrong.
                    return;
                }
                if time_ms <= series.last_ms || time_ms > at_ms.saturating_add(MAX_AHEAD_MS) || time_ms < 0 {
                    out.out_of_order += 1;
                    reason(
                        &mut reasons,
                        format!(
                            "line {}: the time of {} is before the previous sample or in the future",
                            line.number, series.name
                        ),
                    );
                    return;
                }
                series.last_ms = time_ms;
                out.kept += 1;
                builder.push(&NewPoint {
                    run_id,
                    target: instance,
                    name: &series.name,
                    labels: &series.labels,
                    kind: series.kind,
                    time_ns: time_ms * 1_000_000,
                    value: line.value,
                });
            },
            |bad| {
                bad_lines += 1;
                reason(&mut line_reasons, format!("line {}: {}", bad.number, bad.why));
            },
        );
        if too_many {
            self.put_back(before);
            return Err(format!(
                "the page has more than max_samples = {max_samples} samples, so none was stored; check for a label with too many values"
            ));
        }
        out.bad_lines = bad_lines + bad_series;
        out.reasons = line_reasons;
        out.reasons.extend(reasons);
        out.reasons.truncate(MAX_REASONS);
        if out.samples == 0 && out.bad_lines > 0 {
            self.put_back(before);
            return Err(format!("the page is not Prometheus text: {}", out.reasons.join("; ")));
        }
        self.end_missing(&mut builder, at_ms);
        self.figures(&mut builder, at_ms, took_s, Some(&out));
        let batch = builder.finish().map_err(|e: ArrowError| e.to_string())?;
        Ok((batch, out))
    }

    /// As if the page had not come.
    fn put_back(&mut self, before: Vec<Before>) {
        self.page -= 1;
        for Before { series, page, last_ms, own_times } in before {
            match (page, self.known.get_mut(series)) {
                (Some(page), Some(known)) => (known.page, known.last_ms, known.own_times) = (page, last_ms, own_times),
                (None, _) => drop(self.known.remove(series)),
                (Some(_), None) => {}
            }
        }
        self.known.shrink_to(self.max_samples);
    }

    /// Rows of a scrape that failed: every series ends, and `up` is 0.
    pub fn failed(&mut self, at_ms: i64, took_s: f64) -> Result<RecordBatch, ArrowError> {
        self.page += 1;
        let mut builder = SeriesBuilder::default();
        self.end_missing(&mut builder, at_ms);
        self.figures(&mut builder, at_ms, took_s, None);
        builder.finish()
    }

    /// Stale markers for series of the last page that this one does not have.
    fn end_missing(&mut self, builder: &mut SeriesBuilder, at_ms: i64) {
        let page = self.page;
        for series in self.known.values_mut() {
            let missing = series.page + 1 == page && !series.own_times;
            if missing && series.last_ms < at_ms {
                series.last_ms = at_ms;
                builder.push(&NewPoint {
                    run_id: &self.run_id,
                    target: &self.instance,
                    name: &series.name,
                    labels: &series.labels,
                    kind: series.kind,
                    time_ns: at_ms * 1_000_000,
                    value: STALE,
                });
            }
        }
        let many = self.known.len() > self.max_samples.saturating_mul(PAGES_REMEMBERED);
        if many || page.is_multiple_of(FORGET_AFTER) {
            let kept = if many { 1 } else { FORGET_AFTER };
            self.known.retain(|_, series| series.page + kept > page);
            self.known.shrink_to_fit();
        }
    }

    /// The figures that Prometheus adds to every scrape, under its names.
    fn figures(&self, builder: &mut SeriesBuilder, at_ms: i64, took_s: f64, outcome: Option<&Outcome>) {
        let count = |n: Option<usize>| n.unwrap_or(0) as f64;
        for (name, value) in [
            ("up", f64::from(outcome.is_some())),
            ("scrape_duration_seconds", took_s),
            ("scrape_samples_scraped", count(outcome.map(|o| o.samples))),
            ("scrape_samples_post_metric_relabeling", count(outcome.map(|o| o.samples))),
            ("scrape_series_added", count(outcome.map(|o| o.added))),
        ] {
            builder.push(&NewPoint {
                run_id: &self.run_id,
                target: &self.instance,
                name,
                labels: &self.target_json,
                kind: "gauge",
                time_ns: at_ms * 1_000_000,
                value,
            });
        }
    }

    pub fn series(&self) -> usize {
        self.known.values().filter(|s| s.page == self.page).count()
    }
}

/// The labels of a page's series together with the target's. A label that both have is renamed on the page's side, unless
/// the page is to be believed.
fn with_target(
    page: BTreeMap<String, String>,
    target: &BTreeMap<String, String>,
    honor_labels: bool,
) -> BTreeMap<String, String> {
    let mut labels = target.clone();
    for (name, value) in page {
        if honor_labels || !target.contains_key(&name) {
            labels.insert(name, value);
        } else {
            let mut renamed = format!("exported_{name}");
            while labels.contains_key(&renamed) {
                renamed = format!("exported_{renamed}");
            }
            labels.insert(renamed, value);
        }
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::AsArray;
    use arrow::compute::cast;
    use arrow::datatypes::{DataType, Float64Type, Int64Type};

    fn pages(change: impl FnOnce(&mut ScrapeTarget, &mut ScrapeLimits)) -> Pages {
        let mut target = ScrapeTarget { url: "http://h:1/metrics".into(), ..ScrapeTarget::default() };
        let mut limits = ScrapeLimits::default();
        change(&mut target, &mut limits);
        Pages::new(&target, &limits)
    }

    /// Rows of the page itself: name, labels, milliseconds, value.
    fn rows(batch: &RecordBatch) -> Vec<(String, String, i64, f64)> {
        let text = |n: &str| cast(batch.column_by_name(n).unwrap(), &DataType::Utf8).unwrap();
        let (names, labels) = (text("name"), text("labels"));
        let times = batch.column_by_name("time_ns").unwrap().as_primitive::<Int64Type>();
        let values = batch.column_by_name("value").unwrap().as_primitive::<Float64Type>();
        (0..batch.num_rows())
            .map(|i| {
                let text = |c: &arrow::array::ArrayRef| c.as_string::<i32>().value(i).to_string();
                (text(&names), text(&labels), times.value(i) / 1_000_000, values.value(i))
            })
            .filter(|r| r.0 != "up" && !r.0.starts_with("scrape_"))
            .collect()
    }

    #[test]
    fn a_series_that_goes_gets_a_stale_marker_once() {
        let mut pages = pages(|_, _| {});
        let (batch, out) = pages.read_page("a 1\nb{x=\"1\"} 2\n", false, 1000, 0.1).unwrap();
        assert_eq!((out.kept, out.added, rows(&batch).len()), (2, 2, 2));
        let (batch, _) = pages.read_page("a 3\n", false, 2000, 0.1).unwrap();
        let found = rows(&batch);
        assert_eq!((found[0].0.as_str(), found[0].3), ("a", 3.0));
        assert!(found[1].0 == "b" && found[1].3.to_bits() == STALE.to_bits());
        assert_eq!(rows(&pages.read_page("a 3\n", false, 3000, 0.1).unwrap().0).len(), 1);
        // A scrape that fails ends everything; the next begins again.
        assert_eq!(rows(&pages.failed(4000, 0.1).unwrap()).len(), 1);
        assert_eq!(rows(&pages.failed(5000, 0.1).unwrap()).len(), 0);
        assert_eq!(rows(&pages.read_page("a 1\n", false, 6000, 0.1).unwrap().0).len(), 1);
    }

    #[test]
    fn duplicates_bad_lines_and_times_that_go_back_are_counted_and_named() {
        let mut pages = pages(|_, _| {});
        let (batch, out) = pages.read_page("a 1\na 2\nbad\nc{ 1\nd 4 5000\n", false, 10_000, 0.0).unwrap();
        assert_eq!((out.duplicates, out.bad_lines, out.kept), (1, 2, 2));
        assert_eq!(rows(&batch)[0].3, 1.0);
        assert!(
            out.reasons.iter().any(|r| r.contains("line 3")) && out.reasons.iter().any(|r| r.contains("duplicate"))
        );
        let (_, out) = pages.read_page("a 1\nd 5 4000\n", false, 11_000, 0.0).unwrap();
        assert_eq!(out.out_of_order, 1);
        // The same time again is neither a mistake nor a new sample.
        let (batch, out) = pages.read_page("a 1\nd 4 5000\n", false, 12_000, 0.0).unwrap();
        assert_eq!((out.out_of_order, rows(&batch).len()), (0, 1));
        // A series with its own times does not end when it is missing.
        assert_eq!(rows(&pages.read_page("a 1\n", false, 13_000, 0.0).unwrap().0).len(), 1);
        assert!(
            pages.read_page("<html>\n<p>hello</p>\n", false, 14_000, 0.0).unwrap_err().contains("not Prometheus text")
        );
    }

    #[test]
    fn a_label_set_that_explodes_is_refused_whole() {
        let mut pages = pages(|_, limits| limits.max_samples = 10);
        let page: String = (0..20).map(|i| format!("a{{id=\"{i}\"}} 1\n")).collect();
        assert!(pages.read_page(&page, false, 1000, 0.0).unwrap_err().contains("max_samples"));
    }

    #[test]
    fn a_refused_page_leaves_no_trace() {
        let mut pages = pages(|_, limits| limits.max_samples = 10);
        let exploded = |n: usize| (0..20).map(|i| format!("a{{id=\"{n}-{i}\"}} 1\n")).collect::<String>();
        pages.read_page("a 1\nb 2\n", false, 1000, 0.0).unwrap();
        assert!(pages.read_page(&format!("a 1\n{}", exploded(0)), false, 2000, 0.0).is_err());
        // The series of the last good page end, also the one that the refused page had.
        let ended: Vec<String> = rows(&pages.failed(2000, 0.0).unwrap()).into_iter().map(|r| r.0).collect();
        assert_eq!(ended.len(), 2, "{ended:?}");
        for n in 1..1000 {
            assert!(pages.read_page(&exploded(n), false, 3000 + n as i64, 0.0).is_err());
            pages.failed(3000 + n as i64, 0.0).unwrap();
        }
        assert!(pages.known.len() <= 10, "{}", pages.known.len());
        assert!(pages.read_page("<html>\n", false, 9000, 0.0).is_err());
        assert_eq!(rows(&pages.read_page("a 3\n", false, 9000, 0.0).unwrap().0)[0].3, 3.0);
    }

    #[test]
    fn series_that_come_and_go_are_forgotten_before_they_are_too_many() {
        let mut pages = pages(|_, limits| limits.max_samples = 10);
        for n in 0..1000 {
            let page: String = (0..10).map(|i| format!("a{{id=\"{n}-{i}\"}} 1\n")).collect();
            pages.read_page(&page, false, 1000 + n, 0.0).unwrap();
            assert!(pages.known.len() <= 10 * PAGES_REMEMBERED);
        }
    }

    #[test]
    fn labels_of_the_target_win_unless_the_page_is_honoured() {
        let read = |honor| {
            let mut pages = pages(|target, _| {
                target.labels.insert("job".into(), "ignored".into());
                target.job = "mine".into();
                target.honor_labels = honor;
            });
            rows(&pages.read_page("a{job=\"page\"} 1\n", false, 1000, 0.0).unwrap().0)[0].1.clone()
        };
        assert_eq!(read(false), r#"{"exported_job":"page","instance":"h:1","job":"mine"}"#);
        assert_eq!(read(true), r#"{"instance":"h:1","job":"page"}"#);
    }
}
