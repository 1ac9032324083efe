//! Opening rollout dumps: from the start of the process to the finished page.

use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use rollscope_formats::testing::torch_writer::{Shape, write_dump};

use crate::report::Report;
use crate::server::{binary, timed};

/// Name, shape, and the aims: seconds, megabytes of memory and of the page.
const DUMPS: [(&str, Shape, f64, f64, f64); 2] =
    [("M", Shape::M, 0.7, 300.0, 12.0), ("L", Shape::L, 4.0, 1000.0, 80.0)];

/// Writes a dump: M or L, or one with the given number of samples, with many spans and little text.
pub fn write(shape: &str, out: &Path) -> anyhow::Result<()> {
    let shape = match DUMPS.into_iter().find(|(name, ..)| *name == shape) {
        Some((_, shape, ..)) => shape,
        None => Shape {
            samples: shape.parse()?,
            spans: 40,
            prompt_tokens: 16,
            response_tokens: 16,
            response_bytes: 200,
            rollout_id: 0,
        },
    };
    Ok(write_dump(BufWriter::new(std::fs::File::create(out)?), &shape)?.flush()?)
}

pub fn run(report: &mut Report) -> anyhow::Result<()> {
    for (name, shape, aim_s, aim_mb, aim_page) in DUMPS {
        let dir = tempfile::tempdir()?;
        let dump = dir.path().join("rollout_0.pt");
        write_dump(BufWriter::new(std::fs::File::create(&dump)?), &shape)?.flush()?;
        let bytes = std::fs::metadata(&dump)?.len();
        println!("dump {name}: {} samples of {} spans, {:.0} MB", shape.samples, shape.spans, bytes as f64 / 1e6);
        let best = |times: usize, what: &dyn Fn() -> anyhow::Result<f64>| -> anyhow::Result<f64> {
            (0..times).try_fold(f64::INFINITY, |best, _| Ok(best.min(what()?)))
        };
        let checksum = best(3, &|| checksum(&dump))?;
        let (mut seconds, mut peak) = (f64::INFINITY, 0u64);
        for _ in 0..3 {
            let (s, mb) = view(&dump, &["--rebuild"])?;
            seconds = seconds.min(s);
            peak = peak.max(mb);
        }
        let (again, _) = view(&dump, &[])?;
        let page = std::fs::metadata(dir.path().join("rollout_0.trace_timeline_viewer.html"))?.len();
        report.row(
            &format!("view of dump {name} ({:.0} MB), s", bytes as f64 / 1e6),
            format!("{seconds:.2}"),
            "reading it once with a checksum",
            format!("{checksum:.2}"),
            seconds / checksum,
            &format!("<= {aim_s} s"),
        );
        report.row(
            &format!("view of dump {name}, peak memory, MB"),
            format!("{:.0}", peak as f64 / 1e6),
            "aim",
            format!("{aim_mb:.0}"),
            peak as f64 / 1e6 / aim_mb,
            "<= 1",
        );
        report.row(
            &format!("second view of dump {name}, s"),
            format!("{again:.3}"),
            "aim for M",
            "0.3".into(),
            again / 0.3,
            "<= 1",
        );
        report.row(
            &format!("page of dump {name}, MB"),
            format!("{:.1}", page as f64 / 1e6),
            "the dump",
            format!("{:.1}", bytes as f64 / 1e6),
            page as f64 / bytes as f64,
            &format!("<= {aim_page} MB"),
        );
    }
    Ok(())
}

fn checksum(path: &Path) -> anyhow::Result<f64> {
    let started = Instant::now();
    let mut file = std::fs::File::open(path)?;
    let (mut crc, mut buffer) = (crc32fast::Hasher::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => crc.update(&buffer[..n]),
        }
    }
    std::hint::black_box(crc.finalize());
    Ok(started.elapsed().as_secs_f64())
}

fn view(dump: &Path, flags: &[&str]) -> anyhow::Result<(f64, u64)> {
    timed(Command::new(binary()).arg("view").arg(dump).arg("--no-serve").args(flags))
}
