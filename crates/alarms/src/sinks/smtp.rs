//! E-mail: the few words of SMTP that handing in a message takes (RFC 5321), with STARTTLS (RFC 3207) and AUTH (RFC 4954). Written by
//! hand, because the usual crate changes features of shared dependencies. Each answer and the whole exchange are bounded.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::Sink;
use crate::config::{EmailConfig, EmailTls};
use crate::message::Message;

/// Bytes of a line of an answer, and lines of an answer.
const MAX_LINE: usize = 2048;
const MAX_LINES: usize = 100;
/// Alarms that a message lists.
const MAX_ALARMS: usize = 50;
/// Characters of a line of base64.
const BODY_LINE: usize = 76;

pub struct Email {
    config: EmailConfig,
    host: String,
    tls: Arc<ClientConfig>,
}

impl Email {
    pub fn new(config: &EmailConfig) -> Result<Email, String> {
        let mut roots = RootCertStore::empty();
        match &config.ca_file {
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Some(path) => {
                let about = |e: &dyn std::fmt::Display| format!("ca_file {}: {e}", path.display());
                for certificate in CertificateDer::pem_file_iter(path).map_err(|e| about(&e))? {
                    roots.add(certificate.map_err(|e| about(&e))?).map_err(|e| about(&e))?;
                }
                if roots.is_empty() {
                    return Err(about(&"the file has no certificate"));
                }
            }
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let host = config.server.rsplit_once(':').map_or(config.server.as_str(), |(host, _)| host);
        Ok(Email { config: config.clone(), host: host.trim_matches(['[', ']']).to_string(), tls: Arc::new(tls) })
    }

    fn deliver(&self, text: &str) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs_f64(self.config.timeout_s);
        let socket = connect(&self.config.server, deadline)?;
        let mut talk = match self.config.tls {
            EmailTls::Tls => Talk::plain(socket, deadline).encrypted(&self.host, &self.tls)?,
            _ => Talk::plain(socket, deadline),
        };
        talk.expect(2, "the greeting")?;
        let mut offers = talk.hello()?;
        if self.config.tls == EmailTls::Starttls {
            if !offers.iter().any(|o| o.eq_ignore_ascii_case("STARTTLS")) {
                return Err("the server does not offer STARTTLS; set tls = \"tls\" or \"none\"".into());
            }
            talk.command("STARTTLS", 2)?;
            talk = talk.encrypted(&self.host, &self.tls)?;
            offers = talk.hello()?;
        }
        if let Some(password) = &self.config.password {
            self.authenticate(&mut talk, &offers, password.expose())?;
        }
        talk.command(&format!("MAIL FROM:<{}>", self.config.from), 2)?;
        for to in &self.config.to {
            talk.command(&format!("RCPT TO:<{to}>"), 2)?;
        }
        talk.command("DATA", 3)?;
        talk.write(&stuffed(text))?;
        talk.command(".", 2)?;
        // It is delivered; how the server says goodbye does not matter.
        let _ = talk.command("QUIT", 2);
        Ok(())
    }

    fn authenticate(&self, talk: &mut Talk, offers: &[String], password: &str) -> Result<(), String> {
        let methods: Vec<String> = offers
            .iter()
            .filter_map(|offer| offer.to_ascii_uppercase().strip_prefix("AUTH").map(str::to_string))
            .flat_map(|methods| methods.split([' ', '=']).map(str::to_string).collect::<Vec<_>>())
            .collect();
        let user = &self.config.username;
        let has = |method: &str| methods.iter().any(|m| m == method);
        let said = if has("PLAIN") {
            talk.command(&format!("AUTH PLAIN {}", STANDARD.encode(format!("\0{user}\0{password}"))), 2)
        } else if has("LOGIN") {
            talk.command("AUTH LOGIN", 3)?;
            talk.command(&STANDARD.encode(user), 3)?;
            talk.command(&STANDARD.encode(password), 2)
        } else {
            return Err("the server offers neither AUTH PLAIN nor AUTH LOGIN".into());
        };
        // The words that were sent are secret.
        said.map_err(|why| format!("the server does not accept username and password: {why}"))
    }
}

impl Sink for Email {
    fn send(&mut self, message: &Message) -> Result<(), String> {
        let now = rollscope_model::time::now_ns() / 1_000_000_000;
        self.deliver(&mail(&self.config, message, now, &uuid::Uuid::new_v4().to_string()))
    }
}

fn connect(server: &str, deadline: Instant) -> Result<TcpStream, String> {
    let addresses = server.to_socket_addrs().map_err(|e| format!("{server}: {e}"))?;
    let mut why = format!("{server} has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, left(deadline)?) {
            Ok(socket) => return Ok(socket),
            Err(e) => why = format!("cannot connect to {server}: {e}"),
        }
    }
    Err(why)
}

fn left(deadline: Instant) -> Result<Duration, String> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err("the server took longer than timeout_s".into()) } else { Ok(left) }
}

enum Wire {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// An exchange with a server.
struct Talk {
    wire: Wire,
    deadline: Instant,
    /// What was read past the last line.
    ahead: Vec<u8>,
}

impl Talk {
    fn plain(socket: TcpStream, deadline: Instant) -> Talk {
        Talk { wire: Wire::Plain(socket), deadline, ahead: Vec::new() }
    }

    /// What came before encryption must not count after it.
    fn encrypted(self, host: &str, tls: &Arc<ClientConfig>) -> Result<Talk, String> {
        if !self.ahead.is_empty() {
            return Err("the server said more than it was asked before encryption".into());
        }
        let Wire::Plain(socket) = self.wire else { return Err("the connection is encrypted already".into()) };
        let name = ServerName::try_from(host.to_string()).map_err(|e| format!("{host}: {e}"))?;
        let connection = ClientConnection::new(tls.clone(), name).map_err(|e| e.to_string())?;
        let wire = Wire::Tls(Box::new(StreamOwned::new(connection, socket)));
        Ok(Talk { wire, deadline: self.deadline, ahead: Vec::new() })
    }

    fn patience(&self) -> Result<(), String> {
        let left = Some(left(self.deadline)?);
        let socket = match &self.wire {
            Wire::Plain(socket) => socket,
            Wire::Tls(stream) => &stream.sock,
        };
        socket.set_read_timeout(left).and_then(|()| socket.set_write_timeout(left)).map_err(|e| e.to_string())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.patience()?;
        let written = match &mut self.wire {
            Wire::Plain(socket) => socket.write_all(bytes).and_then(|()| socket.flush()),
            Wire::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        };
        written.map_err(|e| format!("cannot write to the server: {}", words(&e)))
    }

    fn line(&mut self) -> Result<String, String> {
        loop {
            if let Some(end) = self.ahead.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.ahead.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_string());
            }
            if self.ahead.len() > MAX_LINE {
                return Err("the server sent a line that is too long".into());
            }
            self.patience()?;
            let mut buffer = [0; 1024];
            let read = match &mut self.wire {
                Wire::Plain(socket) => socket.read(&mut buffer),
                Wire::Tls(stream) => stream.read(&mut buffer),
            };
            match read {
                Ok(0) => return Err("the server closed the connection".into()),
                Ok(n) => self.ahead.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(format!("cannot read from the server: {}", words(&e))),
            }
        }
    }

    /// An answer that begins with this digit, without its codes.
    fn expect(&mut self, digit: u8, what: &str) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        loop {
            let line = self.line()?;
            let code = line.get(..3).filter(|code| code.bytes().all(|b| b.is_ascii_digit()));
            let Some(code) = code else { return Err(format!("{what}: the server does not speak SMTP: {line:?}")) };
            let last = line.as_bytes().get(3) != Some(&b'-');
            if last && !code.starts_with(char::from(b'0' + digit)) {
                return Err(format!("{what}: the server answered {line}"));
            }
            lines.push(line.get(4..).unwrap_or_default().to_string());
            if last {
                return Ok(lines);
            }
            if lines.len() > MAX_LINES {
                return Err(format!("{what}: the answer of the server has too many lines"));
            }
        }
    }

    fn command(&mut self, text: &str, digit: u8) -> Result<(), String> {
        self.write(format!("{text}\r\n").as_bytes())?;
        let what = text.split(' ').next().unwrap_or_default();
        // Without a space it may be a secret.
        let what = if text.contains(' ') || ["DATA", "QUIT", "STARTTLS", "."].contains(&text) { what } else { "AUTH" };
        self.expect(digit, what).map(drop)
    }

    fn hello(&mut self) -> Result<Vec<String>, String> {
        self.write(b"EHLO rollscope\r\n")?;
        self.expect(2, "EHLO")
    }
}

fn words(e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "it took longer than timeout_s".into(),
        _ => e.to_string(),
    }
}

/// Lines end with CRLF, and a line that begins with a dot gets another one, so that none of them ends the message.
fn stuffed(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 64);
    for line in text.lines() {
        if line.starts_with('.') {
            out.push(b'.');
        }
        out.extend_from_slice(line.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// A header's text, encoded where it is not ASCII. It cannot begin another header.
fn header(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
    if line.is_ascii() {
        return line;
    }
    let words: Vec<String> = line
        .chars()
        .collect::<Vec<_>>()
        .chunks(10)
        .map(|part| format!("=?utf-8?B?{}?=", STANDARD.encode(part.iter().collect::<String>())))
        .collect();
    words.join("\r\n ")
}

/// `Tue, 17 Nov 2026 14:22:51 +0000`.
fn date(seconds: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let text = crate::text::rfc3339(seconds * 1000);
    let month = text.get(5..7).and_then(|m| m.parse::<usize>().ok()).unwrap_or(1).clamp(1, 12);
    let part = |range: std::ops::Range<usize>| text.get(range).unwrap_or_default().to_string();
    let day = DAYS[(seconds.div_euclid(86_400)).rem_euclid(7) as usize];
    format!("{day}, {} {} {} {} +0000", part(8..10), MONTHS[month - 1], part(0..4), part(11..19))
}

fn mail(config: &EmailConfig, message: &Message, now: i64, id: &str) -> String {
    let mut body = String::new();
    for note in message.alarms.iter().take(MAX_ALARMS) {
        body += &format!("{}\n{}\n\n", note.sentence, note.link);
        for (name, value) in &note.labels {
            body += &format!("  {name}: {value}\n");
        }
        body += &format!("  value: {}\n  since: {}\n", note.value, note.started_at);
        if let Some(ended) = &note.ended_at {
            body += &format!("  ended: {ended}\n");
        }
        body.push('\n');
    }
    let more = message.alarms.len().saturating_sub(MAX_ALARMS);
    if more > 0 {
        body += &format!("and {more} more\n");
    }
    let encoded = STANDARD.encode(body);
    let lines: Vec<&str> =
        encoded.as_bytes().chunks(BODY_LINE).map(|line| std::str::from_utf8(line).unwrap_or_default()).collect();
    format!(
        "From: {from}\r\nTo: {to}\r\nSubject: {subject}\r\nDate: {date}\r\nMessage-ID: <{id}@rollscope>\r\nMIME-Version: 1.0\r\n\
         Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\nAuto-Submitted: auto-generated\r\n\r\n{lines}\r\n",
        from = config.from,
        to = config.to.join(",\r\n "),
        subject = header(&message.title()),
        date = date(now),
        lines = lines.join("\r\n"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_a_dot_does_not_end_the_message() {
        assert_eq!(stuffed("a\n.\n..b\r\nc"), b"a\r\n..\r\n...b\r\nc\r\n");
    }

    #[test]
    fn headers_hold_what_they_are_given() {
        assert_eq!(header("Firing: A\r\nBcc: x@y"), "Firing: A  Bcc: x@y");
        assert!(header("Höhe").starts_with("=?utf-8?B?"));
        assert_eq!(date(1_794_925_371), "Tue, 17 Nov 2026 14:22:51 +0000");
        assert_eq!(date(0), "Thu, 01 Jan 1970 00:00:00 +0000");
    }
}
