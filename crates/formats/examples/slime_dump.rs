//! Makes and measures dumps:
//!
//! - `slime_dump generate M|L FILE` writes a dump of slime's exact shape;
//! - `slime_dump read FILE [OUT.json]` opens it, makes every row and the cache, and says how long each took;
//! - `slime_dump checksum FILE` reads the file once and checksums it: what the others are compared with.

use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::time::Instant;

use rollscope_formats::export::slime_cache;
use rollscope_formats::import::ImportOptions;
use rollscope_formats::import::slime_pt::Dump;
use rollscope_formats::testing::torch_writer::{Shape, write_dump};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let start = Instant::now();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["generate", size, file] => {
            let shape = if size == "L" { Shape::L } else { Shape::M };
            write_dump(BufWriter::new(std::fs::File::create(file)?), &shape)?.flush()?;
            println!("{} bytes", std::fs::metadata(file)?.len());
        }
        ["checksum", file] => {
            let mut file = std::fs::File::open(file)?;
            let (mut crc, mut buffer) = (flate2::Crc::new(), vec![0; 1 << 20]);
            loop {
                match file.read(&mut buffer)? {
                    0 => break,
                    n => crc.update(&buffer[..n]),
                }
            }
            println!("{:08x} after {:?}", crc.sum(), start.elapsed());
        }
        ["read", file, ..] => {
            let dump = Dump::open(Path::new(file))?;
            println!("open    {:?} (heap {} MB)", start.elapsed(), dump.torch().heap.allocated() >> 20);
            println!("{:?}", dump.summary());
            println!("summary {:?}", start.elapsed());
            let mut rows = 0;
            if args.len() < 4 {
                dump.batches(&ImportOptions::default(), &mut |_, batch| {
                    rows += batch.num_rows();
                    Ok(())
                })?;
                println!("{rows} rows {:?}", start.elapsed());
            }
            if let Some(out) = args.get(2) {
                let mut out = BufWriter::with_capacity(1 << 20, std::fs::File::create(out)?);
                slime_cache::write(&dump, file, 0.0, &mut out)?;
                out.flush()?;
                println!("cache   {:?}", start.elapsed());
            }
        }
        _ => return Err("generate M|L FILE, read FILE [OUT.json], or checksum FILE".into()),
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|l| l.starts_with("VmHWM")).unwrap_or_default();
    println!("{:?}, {peak}", start.elapsed());
    Ok(())
}
