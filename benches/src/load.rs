//! Load: requests of 512 spans with 8 attributes, each with its own ids and times, made by patching one encoded
//! request, so that making them costs next to nothing beside receiving them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Context;
use arrow::array::cast::AsArray;
use arrow::datatypes::Int64Type;
use bytes::Bytes;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;

pub const SPANS: usize = 512;
const ATTRIBUTES: usize = 8;
const SPANS_A_TRACE: usize = 16;

/// Where in the encoded request each span has what must change.
struct Places {
    trace_id: usize,
    span_id: usize,
    start: usize,
    end: usize,
    duration: u64,
}

pub struct Template {
    bytes: Vec<u8>,
    places: Vec<Places>,
}

impl Template {
    pub fn new() -> anyhow::Result<Template> {
        let batch = rollscope_demo::bench_spans(1, SPANS, ATTRIBUTES)?;
        let bytes = rollscope_formats::export::otlp::to_protobuf(&batch);
        let ids = |name: &str| batch.column_by_name(name).expect("a span column").as_fixed_size_binary().clone();
        let times = |name: &str| batch.column_by_name(name).expect("a span column").as_primitive::<Int64Type>().clone();
        let (traces, spans, starts, ends) = (ids("trace_id"), ids("span_id"), times("start_ns"), times("end_ns"));
        let mut places = Vec::new();
        let mut from = 0;
        for i in 0..SPANS {
            let mut find = |what: &[u8]| -> anyhow::Result<usize> {
                let at = bytes[from..].windows(what.len()).position(|w| w == what).context("not in the request")?;
                from += at + what.len();
                Ok(from - what.len())
            };
            places.push(Places {
                trace_id: find(traces.value(i))?,
                span_id: find(spans.value(i))?,
                start: find(&starts.value(i).to_le_bytes())?,
                end: find(&ends.value(i).to_le_bytes())?,
                duration: (ends.value(i) - starts.value(i)) as u64,
            });
        }
        Ok(Template { bytes, places })
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Request number `n`, different from all others. Its time increases with the number.
    pub fn request(&self, n: u64, base_ns: u64) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let mut dice = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1;
        let mut next = || {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            dice
        };
        let mut trace = [0; 16];
        for (i, p) in self.places.iter().enumerate() {
            if i % SPANS_A_TRACE == 0 {
                trace[..8].copy_from_slice(&next().to_be_bytes());
                trace[8..].copy_from_slice(&next().to_be_bytes());
            }
            let start = base_ns + (n * SPANS as u64 + i as u64) * 3_000 + next() % 100_000;
            bytes[p.trace_id..p.trace_id + 16].copy_from_slice(&trace);
            bytes[p.span_id..p.span_id + 8].copy_from_slice(&next().to_be_bytes());
            bytes[p.start..p.start + 8].copy_from_slice(&start.to_le_bytes());
            bytes[p.end..p.end + 8].copy_from_slice(&(start + p.duration).to_le_bytes());
        }
        bytes
    }

    /// A trace of request number `n`, in hexadecimal.
    pub fn trace(&self, n: u64) -> anyhow::Result<String> {
        let decoded = rollscope_formats::import::otlp::decode_traces(&self.request(n, 0), &Default::default())?;
        let ids = decoded.batch.column_by_name("trace_id").expect("a span column").as_fixed_size_binary();
        Ok(ids.value(7).iter().map(|b| format!("{b:02x}")).collect())
    }
}

/// Bytes as they are, in and out.
#[derive(Clone, Copy, Default)]
pub struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = RawCodec;
    type Decoder = RawCodec;
    fn encoder(&mut self) -> RawCodec {
        RawCodec
    }
    fn decoder(&mut self) -> RawCodec {
        RawCodec
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = tonic::Status;
    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), tonic::Status> {
        bytes::BufMut::put(out, item);
        Ok(())
    }
    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(256 << 10, 256 << 10)
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = tonic::Status;
    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, tonic::Status> {
        let n = bytes::Buf::remaining(from);
        Ok(Some(bytes::Buf::copy_to_bytes(from, n)))
    }
}

/// Sends requests `first..first + count` over `clients` connections; seconds until the last acknowledgement.
pub fn send(grpc: &str, template: &Arc<Template>, first: u64, count: u64, clients: usize) -> anyhow::Result<f64> {
    Ok(send_messages(grpc, template, first, count, 1, clients)?.seconds)
}

pub struct Sent {
    /// Until the last acknowledgement.
    pub seconds: f64,
    /// How long each message waited for its acknowledgement, shortest first.
    pub acks_ms: Vec<f64>,
}

/// The same in messages of `each` requests: encoded messages, one after the other, are one message.
pub fn send_messages(
    grpc: &str,
    template: &Arc<Template>,
    first: u64,
    count: u64,
    each: u64,
    clients: usize,
) -> anyhow::Result<Sent> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let base_ns = rollscope_model::time::now_ns() as u64 - 600_000_000_000;
    runtime.block_on(async {
        let next = Arc::new(AtomicU64::new(first));
        let started = Instant::now();
        let mut tasks = Vec::new();
        for _ in 0..clients {
            let channel = Channel::from_shared(grpc.to_string())?
                .initial_stream_window_size(4 << 20)
                .initial_connection_window_size(16 << 20)
                .connect()
                .await?;
            let (next, template) = (next.clone(), template.clone());
            tasks.push(tokio::spawn(async move {
                let mut client = tonic::client::Grpc::new(channel);
                let mut acks_ms = Vec::new();
                loop {
                    let n = next.fetch_add(each, Ordering::Relaxed);
                    if n >= first + count {
                        return anyhow::Ok(acks_ms);
                    }
                    let last = (n + each).min(first + count);
                    let message: Vec<Vec<u8>> = (n..last).map(|n| template.request(n, base_ns)).collect();
                    client.ready().await?;
                    let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export".parse()?;
                    let request = tonic::Request::new(Bytes::from(message.concat()));
                    let sent = Instant::now();
                    let answer: tonic::Response<Bytes> = client.unary(request, path, RawCodec).await?;
                    acks_ms.push(sent.elapsed().as_secs_f64() * 1e3);
                    anyhow::ensure!(answer.get_ref().is_empty(), "some spans were rejected");
                }
            }));
        }
        let mut acks_ms = Vec::new();
        for task in tasks {
            acks_ms.extend(task.await??);
        }
        acks_ms.sort_by(f64::total_cmp);
        Ok(Sent { seconds: started.elapsed().as_secs_f64(), acks_ms })
    })
}
