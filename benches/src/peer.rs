//! The references: only decoding, and a gRPC server that does nothing.

use std::process::Command;
use std::time::Instant;

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;

use crate::load::{RawCodec, SPANS, Template};
use crate::server::Server;

/// CPU seconds a span of only decoding the same bytes with prost.
pub fn prost_decode_s(template: &Template) -> anyhow::Result<f64> {
    let requests: Vec<Bytes> = (0..64).map(|n| template.request(n, 1_790_000_000_000_000_000).into()).collect();
    let mut best = f64::MAX;
    for _ in 0..5 {
        let started = Instant::now();
        for request in &requests {
            let decoded = ExportTraceServiceRequest::decode(request.clone())?;
            anyhow::ensure!(decoded.resource_spans.len() == 1);
        }
        best = best.min(started.elapsed().as_secs_f64());
    }
    Ok(best / (requests.len() * SPANS) as f64)
}

/// The same for our own decoder: bytes to columns.
pub fn our_decode_s(template: &Template) -> anyhow::Result<f64> {
    let requests: Vec<Vec<u8>> = (0..64).map(|n| template.request(n, 1_790_000_000_000_000_000)).collect();
    let options = rollscope_formats::import::otlp::DecodeOptions::default();
    let mut best = f64::MAX;
    for _ in 0..5 {
        let started = Instant::now();
        for request in &requests {
            let decoded = rollscope_formats::import::otlp::decode_traces(request, &options)?;
            anyhow::ensure!(decoded.batch.num_rows() == SPANS);
        }
        best = best.min(started.elapsed().as_secs_f64());
    }
    Ok(best / (requests.len() * SPANS) as f64)
}

pub fn start_do_nothing() -> anyhow::Result<Server> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--do-nothing-server");
    Server::spawn(command)
}

struct Nothing;

impl tonic::server::UnaryService<Bytes> for Nothing {
    type Response = Bytes;
    type Future = std::future::Ready<Result<tonic::Response<Bytes>, tonic::Status>>;
    fn call(&mut self, _: tonic::Request<Bytes>) -> Self::Future {
        std::future::ready(Ok(tonic::Response::new(Bytes::new())))
    }
}

/// Takes requests whole and answers at once.
pub fn do_nothing_server() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("OTLP gRPC http://{}\ndata none", listener.local_addr()?);
        let routes = tonic::service::Routes::default().into_axum_router().fallback(
            |request: axum::extract::Request| async move {
                tonic::server::Grpc::new(RawCodec)
                    .max_decoding_message_size(64 << 20)
                    .unary(Nothing, request)
                    .await
                    .map(axum::body::Body::new)
            },
        );
        axum::serve(listener, routes).await?;
        Ok(())
    })
}
