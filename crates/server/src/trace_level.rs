//! Sets how much SGLang traces.

use std::time::Duration;

/// Sets the level on one server. Versions of SGLang differ in the method that they accept. A rollscope server passes the level
/// on to every SDK that sends to it. (Its page answers any GET, so PUT is tried before GET.)
pub fn set(url: &str, level: u8, api_key: Option<&str>, timeout: Duration) -> Result<String, String> {
    let base = url.trim_end_matches('/');
    let base = if base.contains("://") { base.to_string() } else { format!("http://{base}") };
    let (sglang, ours) = (format!("{base}/set_trace_level?level={level}"), format!("{base}/api/v1/trace-level"));
    let agent: ureq::Agent =
        ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(timeout)).build().into();
    let bearer = api_key.map(|key| format!("Bearer {key}")).unwrap_or_default();
    let mut first = None;
    for method in ["POST", "PUT", "GET"] {
        let answer = match method {
            "POST" => agent.post(&sglang).header("authorization", &bearer).send_empty(),
            "PUT" => agent.put(&ours).header("authorization", &bearer).send_json(serde_json::json!({ "level": level })),
            _ => agent.get(&sglang).header("authorization", &bearer).call(),
        };
        let mut answer = answer.map_err(|e| e.to_string())?;
        let status = answer.status();
        let text = answer.body_mut().with_config().limit(64 << 10).read_to_string().unwrap_or_default();
        let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect();
        match status.as_u16() {
            200..300 if method == "PUT" => return Ok("rollscope passes it on to the SDKs that send to it".into()),
            200..300 => return Ok(text),
            404 | 405 | 501 => first = first.or(Some(format!("{status}: {text}"))),
            _ => return Err(format!("{status}: {text}")),
        }
    }
    Err(format!("{}; expected SGLang with --enable-trace, or a rollscope server", first.unwrap_or_default()))
}
