//! `rollscope demo`: a server over a generated run that keeps going.

use std::time::Duration;

use anyhow::Context;
use rollscope_answers::Answers;
use rollscope_demo::{DemoOptions, Generator, Layout};
use rollscope_model::time::now_ns;
use rollscope_model::{Table, read};
use rollscope_store::{SnapshotSource, Store};
use sha2::{Digest, Sha256};

use crate::args::{DemoArgs, DemoShape};
use crate::commands::serve;
use crate::config::Config;
use crate::output::count;
use crate::place;
use crate::progress::{Bar, Spinner};

pub async fn run(args: DemoArgs) -> anyhow::Result<()> {
    let mut config = Config::resolve(&args.serve)?;
    // Without a folder of one's own, a fresh one: the demo must not mix with real runs.
    let scratch = match &args.serve.data {
        Some(_) => None,
        None => Some(tempfile::Builder::new().prefix("rollscope-demo-").tempdir()?),
    };
    if let Some(scratch) = &scratch {
        config.data = scratch.path().to_path_buf();
        config.store.dir = config.data.clone();
    }
    if args.serve.print_config {
        print!("{}", config.to_toml()?);
        return Ok(());
    }
    serve::start_logs(&config);
    if args.no_serve {
        let store = place::open(&config.data, config.store.clone(), config.node.as_deref()).await?;
        generate(&store, &args).await?;
        super::metrics::work_out(&store, true).await?;
        store.close().await?;
        return Ok(());
    }
    let serve::Serving { store, server, worker: _worker } = serve::start(&config).await?;
    let generator = generate(&store, &args).await?;
    work_out(&store, &config, &generator).await?;
    let mut signals = serve::StopSignals::listen()?;
    serve::announce(&config, &server);
    let watching = serve::start_watching(&config, &store);
    tokio::select! {
        played = play(&store, generator) => played?,
        () = serve::until_told_to_stop(&mut signals, store.vitals(), &config.server.limits) => {}
    }
    watching.stop().await;
    serve::stop(store, server).await
}

/// Writes the finished steps. They end now, so that the step in progress follows on.
async fn generate(store: &Store, args: &DemoArgs) -> anyhow::Result<Generator> {
    let (run_id, seed) = free_run_id(store, args.seed);
    let options = DemoOptions {
        seed,
        steps: args.steps,
        samples: args.samples as usize,
        max_turns: args.turns as usize,
        run_id,
        layout: match args.shape {
            DemoShape::Stamped => Layout::Stamped,
            DemoShape::PerSample => Layout::PerSample,
            DemoShape::PerStep => Layout::PerStep,
            DemoShape::Async => Layout::Async,
        },
        media_hash: |bytes| hex::encode(Sha256::digest(bytes)),
        ..DemoOptions::default()
    };
    let mut generator = Generator::ending_at(options, now_ns());
    for picture in generator.media() {
        store.media_put(picture.bytes.to_vec()).await?;
    }
    store.append(Table::Runs, generator.header(now_ns())?).await?;
    let done = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counter = done.clone();
    let bar = Bar::over("generating steps", args.steps, move || counter.load(std::sync::atomic::Ordering::Relaxed));
    let mut spans = 0;
    for step in 0..args.steps {
        let data = generator.step(step).context("the demo generator failed")?;
        spans += data.rows(Table::Spans) as u64;
        for (table, batch) in data.batches {
            store.append(table, batch).await?;
        }
        done.store(step + 1, std::sync::atomic::Ordering::Relaxed);
    }
    drop(bar);
    println!("generated {} steps with {} spans", args.steps, count(spans));
    Ok(generator)
}

/// Works out the answers about the finished steps. They are kept, so whoever opens the page finds them.
async fn work_out(store: &Store, config: &Config, generator: &Generator) -> anyhow::Result<()> {
    let _spinner = Spinner::start("working out the answers");
    let answers =
        Answers::with_tokenizers(std::sync::Arc::new(store.clone()), config.query.clone(), config.open_tokenizers()?)
            .context("the query engine")?;
    let options = generator.options();
    if let Some(last) = options.steps.checked_sub(1)
        && let Err(error) = answers.step_report_json(&options.run_id, Some(last as i64)).await
    {
        tracing::warn!(%error, "cannot work out the answers");
    }
    Ok(())
}

/// A store that already has a demo run gets another one.
fn free_run_id(store: &Store, seed: u64) -> (String, u64) {
    let snapshot = store.snapshot();
    let taken = |id: &str| {
        let runs = &snapshot.tables[&Table::Runs];
        runs.segments.iter().any(|s| s.part(id).is_some())
            || runs.tail.iter().any(|batch| read::runs(Table::Runs, batch).contains_key(id))
    };
    (0u64..)
        .map(|n| (if n == 0 { "demo".to_string() } else { format!("demo-{}", n + 1) }, seed.wrapping_add(n)))
        .find(|(id, _)| !taken(id))
        .expect("the range has no end")
}

/// Generates steps in real time for as long as the server runs.
async fn play(store: &Store, mut generator: Generator) -> anyhow::Result<()> {
    let mut step = generator.options().steps;
    loop {
        let live = generator.live(step).context("the demo generator failed")?;
        let start = live.start_ns();
        for (offset, table, batch) in live {
            let wait = start + offset - now_ns();
            if wait > 0 {
                tokio::time::sleep(Duration::from_nanos(wait as u64)).await;
            }
            store.append(table, batch).await?;
        }
        step += 1;
    }
}
