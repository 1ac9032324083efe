//! Prometheus's remote write, 1.0 (`prometheus.WriteRequest`) and 2.0 (`io.prometheus.write.v2.Request`), into `series`.
//!
//! A series becomes the rows that scraping it would have written: `instance` is the target, and all labels but the name are
//! labels. What cannot be stored is rejected with a reason; the rest of the request counts. Native histograms
//! are among that. Exemplars are passed over, as those of a page are.

use arrow::array::RecordBatch;
use rollscope_model::build::{NewPoint, SeriesBuilder};
use rollscope_model::time::EARLIEST_LIVE_NS;

use super::prometheus::{Kinds, Limits, MAX_AHEAD_MS};
use super::wire::{Fault, Wire};

const NS_PER_MS: i64 = 1_000_000;
/// Text of all labels that one request can make: so much for every byte of it, and so much for a small one. The symbols of 2.0
/// are written once and may be used often.
const LABELS_PER_BYTE: usize = 64;
const LABELS_FIXED: usize = 1 << 20;

/// Which message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `prometheus.WriteRequest`.
    One,
    /// `io.prometheus.write.v2.Request`.
    Two,
}

pub struct Options<'o> {
    pub limits: &'o Limits,
    /// Samples of one request.
    pub max_samples: usize,
    /// The run that the series belong to.
    pub run_id: &'o str,
    /// The kinds that earlier requests declared.
    pub kinds: &'o Kinds,
    pub now_ms: i64,
}

/// One decoded request.
#[derive(Debug)]
pub struct Decoded {
    /// One row for each sample.
    pub batch: RecordBatch,
    /// Samples and native histograms that are not stored.
    pub rejected: u64,
    /// Why, each once with its count and the first series.
    pub reasons: Vec<String>,
    /// Families and their kinds (1.0 sends them from time to time, apart from samples).
    pub declared: Vec<(String, &'static str)>,
}

/// Why nothing of a request is stored.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("malformed request: {what} at byte {at}")]
    Malformed { what: &'static str, at: usize },
    #[error("{detail}")]
    TooLarge { limit: &'static str, detail: String },
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Malformed { what, at } => Error::Malformed { what, at },
            Fault::Utf8 => Error::Malformed { what: "text that is not valid UTF-8", at: 0 },
        }
    }
}

type Result<T> = std::result::Result<T, Error>;

/// Why a sample is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    NoName,
    EmptyLabel,
    RepeatedLabel,
    Labels,
    LabelBytes,
    Symbol,
    OddRefs,
    Utf8,
    TooEarly,
    TooFarAhead,
    Histogram,
}

impl Reason {
    fn text(self, limits: &Limits) -> String {
        match self {
            Reason::NoName => "the series has no name (__name__)".into(),
            Reason::EmptyLabel => "a label has no name".into(),
            Reason::RepeatedLabel => "a label occurs twice".into(),
            Reason::Labels => format!("more than {} labels (max_labels)", limits.labels),
            Reason::LabelBytes => format!(
                "a name is longer than {} bytes or a label's value longer than {} (max_label_bytes)",
                limits.name_bytes, limits.value_bytes
            ),
            Reason::Symbol => "a reference to a symbol that the request does not have".into(),
            Reason::OddRefs => "the references of labels are not pairs".into(),
            Reason::Utf8 => "a label is not valid UTF-8".into(),
            Reason::TooEarly => "the time is before the year 2000; check the sender's clock".into(),
            Reason::TooFarAhead => "the time is more than ten minutes ahead; check the clocks".into(),
            Reason::Histogram => {
                "native histograms are not stored; remove send_native_histograms and let Prometheus scrape classic ones"
                    .into()
            }
        }
    }
}

/// Numbers of the fields in which the two messages differ.
struct Fields {
    series: u32,
    histograms: u32,
}

pub fn decode(bytes: &[u8], version: Version, options: &Options) -> Result<Decoded> {
    let mut writer = Writer {
        options,
        declared: Vec::new(),
        own_kinds: Kinds::default(),
        symbols: Vec::new(),
        labels: Vec::new(),
        refs: Vec::new(),
        json: Vec::new(),
        columns: SeriesBuilder::default(),
        samples: 0,
        label_bytes: 0,
        max_label_bytes: LABELS_FIXED + LABELS_PER_BYTE.saturating_mul(bytes.len()),
        rejected: 0,
        reasons: Vec::new(),
    };
    let fields = match version {
        Version::One => Fields { series: 1, histograms: 4 },
        Version::Two => Fields { series: 5, histograms: 3 },
    };
    // Fields may come in any order, and symbols and kinds are needed first.
    let mut w = Wire::new(bytes);
    while let Some((field, wire)) = w.tag()? {
        match (version, field) {
            (Version::One, 3) => writer.metadata(w.message(wire)?)?,
            (Version::Two, 4) => writer.symbols.push(w.message(wire)?.bytes),
            _ => w.skip(wire)?,
        }
    }
    let mut w = Wire::new(bytes);
    while let Some((field, wire)) = w.tag()? {
        match field {
            n if n == fields.series => writer.series(w.message(wire)?, version, &fields)?,
            _ => w.skip(wire)?,
        }
    }
    Ok(writer.finish())
}

struct Writer<'a> {
    options: &'a Options<'a>,
    declared: Vec<(String, &'static str)>,
    own_kinds: Kinds,
    symbols: Vec<&'a [u8]>,
    /// Of the series being read.
    labels: Vec<(&'a str, &'a str)>,
    refs: Vec<u64>,
    json: Vec<u8>,
    columns: SeriesBuilder,
    samples: usize,
    label_bytes: usize,
    max_label_bytes: usize,
    rejected: u64,
    reasons: Vec<(Reason, u64, String)>,
}

impl<'a> Writer<'a> {
    fn finish(mut self) -> Decoded {
        let limits = self.options.limits;
        let reason = |(reason, count, first): &(Reason, u64, String)| {
            let first = if first.is_empty() { String::new() } else { format!(", first of {first:?}") };
            format!("{} ({count}{first})", reason.text(limits))
        };
        Decoded {
            batch: self.columns.finish().expect("columns are written row by row"),
            rejected: self.rejected,
            reasons: self.reasons.iter().map(reason).collect(),
            declared: self.declared,
        }
    }

    fn reject(&mut self, reason: Reason) {
        self.rejected += 1;
        match self.reasons.iter_mut().find(|(r, ..)| *r == reason) {
            Some((_, count, _)) => *count += 1,
            None => {
                let name = self.labels.iter().find(|(name, _)| *name == "__name__").map_or("", |(_, value)| value);
                self.reasons.push((reason, 1, name.chars().take(80).collect()));
            }
        }
    }

    /// What 1.0 says about a family.
    fn metadata(&mut self, mut w: Wire<'a>) -> Result<()> {
        let (mut kind, mut family) = ("unknown", Ok(""));
        while let Some((field, wire)) = w.tag()? {
            match field {
                1 => kind = kind_of(w.uint(wire)?),
                2 => family = text(w.message(wire)?.bytes),
                _ => w.skip(wire)?,
            }
        }
        if let Ok(family) = family
            && !family.is_empty()
            && family.len() <= self.options.limits.name_bytes
            && self.declared.len() < self.options.limits.families
        {
            self.declared.push((family.into(), kind));
            self.own_kinds.declare(family.into(), kind, self.options.limits);
        }
        Ok(())
    }

    /// One `TimeSeries`: first who it is, then its samples.
    fn series(&mut self, message: Wire<'a>, version: Version, fields: &Fields) -> Result<()> {
        let (mut kind, mut labels) = ("unknown", Ok(()));
        self.labels.clear();
        self.refs.clear();
        let mut w = message;
        while let Some((field, wire)) = w.tag()? {
            match (version, field) {
                (Version::One, 1) => labels = labels.and(self.label(w.message(wire)?)?),
                (Version::Two, 1) => {
                    let most = 2 * (self.options.limits.labels + 2);
                    let refs = &mut self.refs;
                    w.uints(wire, |n| {
                        if refs.len() < most {
                            refs.push(n)
                        }
                    })?;
                }
                (Version::Two, 5) => {
                    let mut metadata = w.message(wire)?;
                    while let Some((field, wire)) = metadata.tag()? {
                        match field {
                            1 => kind = kind_of(metadata.uint(wire)?),
                            _ => metadata.skip(wire)?,
                        }
                    }
                }
                _ => w.skip(wire)?,
            }
        }
        let identity = labels.and_then(|()| self.resolve()).and_then(|()| self.identify());
        if let Ok((name, _)) = identity {
            self.label_bytes += self.json.len() + name.len();
            if self.label_bytes > self.max_label_bytes {
                return Err(Error::TooLarge {
                    limit: "LABELS_PER_BYTE",
                    detail: format!(
                        "the labels of the request take more than {} bytes; send fewer series per request \
                         (max_samples_per_send)",
                        self.max_label_bytes
                    ),
                });
            }
            for known in [&self.own_kinds, self.options.kinds] {
                if kind == "unknown" {
                    kind = known.of(name);
                }
            }
        }
        let mut w = message;
        while let Some((field, wire)) = w.tag()? {
            match field {
                2 => {
                    let sample = sample(w.message(wire)?)?;
                    self.samples += 1;
                    if self.samples > self.options.max_samples {
                        let most = self.options.max_samples;
                        return Err(Error::TooLarge {
                            limit: "max_samples",
                            detail: format!(
                                "the request has more than max_samples = {most} samples; send fewer per request \
                                 (max_samples_per_send)"
                            ),
                        });
                    }
                    match identity.and_then(|identity| self.in_time(sample.0).map(|()| identity)) {
                        Ok((name, target)) => self.columns.push(&NewPoint {
                            run_id: self.options.run_id,
                            target,
                            name,
                            labels: std::str::from_utf8(&self.json).expect("only UTF-8 is written"),
                            kind,
                            time_ns: sample.0 * NS_PER_MS,
                            value: sample.1,
                        }),
                        Err(reason) => self.reject(reason),
                    }
                }
                n if n == fields.histograms => {
                    w.message(wire)?;
                    self.reject(Reason::Histogram);
                }
                _ => w.skip(wire)?,
            }
        }
        Ok(())
    }

    /// A label of 1.0.
    fn label(&mut self, mut w: Wire<'a>) -> Result<std::result::Result<(), Reason>> {
        let (mut name, mut value) = (Ok(""), Ok(""));
        while let Some((field, wire)) = w.tag()? {
            match field {
                1 => name = text(w.message(wire)?.bytes),
                2 => value = text(w.message(wire)?.bytes),
                _ => w.skip(wire)?,
            }
        }
        Ok(name.and_then(|name| value.and_then(|value| self.add_label(name, value))))
    }

    /// The labels of 2.0: pairs of symbols.
    fn resolve(&mut self) -> std::result::Result<(), Reason> {
        let (refs, symbols) = (std::mem::take(&mut self.refs), std::mem::take(&mut self.symbols));
        let symbol = |n: &u64| {
            let found = usize::try_from(*n).ok().and_then(|n| symbols.get(n));
            text(found.ok_or(Reason::Symbol)?)
        };
        let mut done = if refs.len() % 2 == 0 { Ok(()) } else { Err(Reason::OddRefs) };
        for pair in refs.chunks_exact(2) {
            done = done.and(symbol(&pair[0]).and_then(|name| self.add_label(name, symbol(&pair[1])?)));
        }
        (self.refs, self.symbols) = (refs, symbols);
        done
    }

    fn add_label(&mut self, name: &'a str, value: &'a str) -> std::result::Result<(), Reason> {
        let limits = self.options.limits;
        if name.is_empty() {
            return Err(Reason::EmptyLabel);
        }
        let most = if name == "__name__" { limits.name_bytes } else { limits.value_bytes };
        if name.len() > limits.name_bytes || value.len() > most {
            return Err(Reason::LabelBytes);
        }
        // One more: the name of the series is not a label of its row.
        if self.labels.len() > limits.labels {
            return Err(Reason::Labels);
        }
        // An empty label is the same as none.
        if !value.is_empty() {
            self.labels.push((name, value));
        }
        Ok(())
    }

    /// Name and target of the series. Its labels are in `json`.
    fn identify(&mut self) -> std::result::Result<(&'a str, &'a str), Reason> {
        self.labels.sort_unstable();
        if self.labels.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(Reason::RepeatedLabel);
        }
        let (mut name, mut target) = (None, "");
        self.json.clear();
        self.json.push(b'{');
        for (label, value) in &self.labels {
            match *label {
                "__name__" => {
                    name = Some(*value);
                    continue;
                }
                "instance" => target = value,
                _ => {}
            }
            if self.json.len() > 1 {
                self.json.push(b',');
            }
            serde_json::to_writer(&mut self.json, label).expect("text is JSON");
            self.json.push(b':');
            serde_json::to_writer(&mut self.json, value).expect("text is JSON");
        }
        self.json.push(b'}');
        if self.labels.len() > self.options.limits.labels + usize::from(name.is_some()) {
            return Err(Reason::Labels);
        }
        Ok((name.ok_or(Reason::NoName)?, target))
    }

    fn in_time(&self, time_ms: i64) -> std::result::Result<(), Reason> {
        if time_ms < EARLIEST_LIVE_NS / NS_PER_MS {
            return Err(Reason::TooEarly);
        }
        match time_ms > self.options.now_ms.saturating_add(MAX_AHEAD_MS) {
            true => Err(Reason::TooFarAhead),
            false => Ok(()),
        }
    }
}

/// Time in milliseconds and value.
fn sample(mut w: Wire) -> Result<(i64, f64)> {
    let (mut time_ms, mut value) = (0, 0.0);
    while let Some((field, wire)) = w.tag()? {
        match field {
            1 => value = f64::from_bits(w.fixed64(wire)?),
            2 => time_ms = w.uint(wire)? as i64,
            _ => w.skip(wire)?,
        }
    }
    Ok((time_ms, value))
}

fn text(bytes: &[u8]) -> std::result::Result<&str, Reason> {
    std::str::from_utf8(bytes).map_err(|_| Reason::Utf8)
}

/// `MetricType` of either message.
fn kind_of(number: u64) -> &'static str {
    match number {
        1 => "counter",
        2 | 6 | 7 => "gauge",
        3 | 4 => "histogram",
        5 => "summary",
        _ => "unknown",
    }
}
