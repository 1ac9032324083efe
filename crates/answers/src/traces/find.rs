//! Finding traces. All filters on spans (run, step, sample, request, service, name, attributes, status, time) hold for one
//! and the same span of the trace; the duration is that of the whole trace, from its first start to its last end.

use rollscope_model::TraceId;
use rollscope_model::attrs;
use rollscope_query::{sql_text, sql_trace_ids};

/// What a list of traces can be sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Start,
    Duration,
    Spans,
    Errors,
}

impl Sort {
    pub const NAMES: [(&'static str, Sort); 4] =
        [("start", Sort::Start), ("duration", Sort::Duration), ("spans", Sort::Spans), ("errors", Sort::Errors)];

    fn column(self) -> &'static str {
        match self {
            Sort::Start => "start_ns",
            Sort::Duration => "duration_ns",
            Sort::Spans => "spans",
            Sort::Errors => "errors",
        }
    }
}

/// A search for traces. The default finds all, newest first.
#[derive(Clone, Debug)]
pub struct TraceSearch {
    pub run: Option<String>,
    pub step: Option<i64>,
    pub sample: Option<String>,
    pub request: Option<String>,
    pub service: Option<String>,
    /// A name, or a pattern with `*`.
    pub name: Option<String>,
    pub kind: Option<String>,
    pub status: Option<String>,
    /// Attributes of the span or its resource, compared as text.
    pub attributes: Vec<(String, String)>,
    /// A matching span starts no earlier and no later than this.
    pub from_ns: Option<i64>,
    pub to_ns: Option<i64>,
    /// Of the whole trace.
    pub min_duration_ns: Option<i64>,
    pub max_duration_ns: Option<i64>,
    /// Of a matching span: what Jaeger means by duration.
    pub min_span_ns: Option<i64>,
    pub max_span_ns: Option<i64>,
    pub sort: Sort,
    pub descending: bool,
    pub limit: usize,
    pub offset: usize,
}

impl Default for TraceSearch {
    fn default() -> Self {
        TraceSearch {
            run: None,
            step: None,
            sample: None,
            request: None,
            service: None,
            name: None,
            kind: None,
            status: None,
            attributes: Vec::new(),
            from_ns: None,
            to_ns: None,
            min_duration_ns: None,
            max_duration_ns: None,
            min_span_ns: None,
            max_span_ns: None,
            sort: Sort::Start,
            descending: true,
            limit: 50,
            offset: 0,
        }
    }
}

impl TraceSearch {
    /// The conditions on one span.
    fn span_filter(&self) -> Option<String> {
        let mut all = Vec::new();
        let mut equal = |column: &str, value: &Option<String>| {
            if let Some(value) = value {
                all.push(format!("{column} = {}", sql_text(value)));
            }
        };
        equal("run_id", &self.run);
        equal("sample_id", &self.sample);
        equal("request_id", &self.request);
        equal("service", &self.service);
        equal("kind", &self.kind);
        equal("status", &self.status);
        match &self.name {
            Some(name) if name.contains('*') => {
                let escaped = name.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_").replace('*', "%");
                all.push(format!("name like {}", sql_text(&escaped)));
            }
            Some(name) => all.push(format!("name = {}", sql_text(name))),
            None => {}
        }
        if let Some(step) = self.step {
            all.push(format!("step = {step}"));
        }
        for (key, value) in &self.attributes {
            all.push(attribute(key, value));
        }
        let bounds = [
            ("start_ns >=", self.from_ns),
            ("start_ns <=", self.to_ns),
            ("end_ns - start_ns >=", self.min_span_ns),
            ("end_ns - start_ns <=", self.max_span_ns),
        ];
        for (bound, value) in bounds {
            if let Some(value) = value {
                all.push(format!("{bound} {value}"));
            }
        }
        (!all.is_empty()).then(|| all.join(" and "))
    }

    /// Columns: trace_id, start_ns, end_ns, duration_ns, spans, errors, open, total (how many there are before paging).
    pub fn sql(&self) -> String {
        let of = match self.span_filter() {
            Some(filter) => format!(" where trace_id in (select distinct trace_id from spans where {filter})"),
            None => String::new(),
        };
        let mut duration = Vec::new();
        for (bound, value) in [(">=", self.min_duration_ns), ("<=", self.max_duration_ns)] {
            if let Some(value) = value {
                duration.push(format!("duration_ns {bound} {value}"));
            }
        }
        let duration = if duration.is_empty() { String::new() } else { format!(" where {}", duration.join(" and ")) };
        let order = format!("{} {}", self.sort.column(), if self.descending { "desc" } else { "asc" });
        format!(
            "with t as (select trace_id, min(start_ns) as start_ns, max(coalesce(end_ns, start_ns)) as end_ns, \
                               max(coalesce(end_ns, start_ns)) - min(start_ns) as duration_ns, count(*) as spans, \
                               sum(case when status = 'error' then 1 else 0 end) as errors, \
                               sum(case when state = 'open' then 1 else 0 end) as open \
                        from spans{of} group by trace_id) \
             select *, count(*) over () as total from t{duration} order by {order}, trace_id \
             limit {} offset {}",
            self.limit, self.offset
        )
    }

    /// The newest traces that match, as Jaeger lists them: only their ids.
    pub fn ids_sql(&self) -> String {
        let filter = self.span_filter().map_or_else(String::new, |f| format!(" where {f}"));
        format!(
            "select trace_id from (select trace_id, max(start_ns) as latest from spans{filter} group by trace_id) \
             order by latest desc, trace_id limit {} offset {}",
            self.limit, self.offset
        )
    }
}

/// An attribute of a span or of its resource has this value, of any type.
fn attribute(key: &str, value: &str) -> String {
    // Two that Jaeger's users write and that are columns here.
    match (key, value) {
        ("error", "true") => return "status = 'error'".into(),
        ("error", "false") => return "status <> 'error'".into(),
        ("span.kind", kind) => return format!("kind = {}", sql_text(kind)),
        _ => {}
    }
    let mut text = Vec::new();
    attrs::write_str(&mut text, value);
    let text = String::from_utf8(text).unwrap_or_default();
    let either = format!("({}, {})", sql_text(&text), sql_text(value));
    let of = |column: &str| format!("attr_json({column}, {}) in {either}", sql_text(key));
    format!("({} or {} or {})", of("start_attrs"), of("end_attrs"), of("resource"))
}

/// What a list shows of each trace beyond its figures: one row per trace, for the traces of one page. A trace that is about several
/// samples or requests, such as that of a step, is listed without them.
/// Columns: trace_id, root, service, services, run_id, step, sample_id, request_id, root_status.
pub fn details_sql(ids: &[TraceId]) -> String {
    let first = "order by rooted, start_ns, span_id";
    format!(
        "select trace_id, first_value(name {first}) as root, first_value(service {first}) as service, \
                count(distinct service) as services, min(run_id) as run_id, min(step) as step, \
                case when min(sample_id) = max(sample_id) then min(sample_id) end as sample_id, \
                case when min(request_id) = max(request_id) then min(request_id) end as request_id \
         from (select *, case when parent_span_id is null then 0 else 1 end as rooted from spans \
               where trace_id in ({})) group by trace_id",
        sql_trace_ids(ids)
    )
}

/// What Jaeger lists of each trace: one row per trace and service.
/// Columns: trace_id, service, spans, errors, start_ns, end_ns; root_ns and root of the service's first span without a parent,
/// null if it has none.
pub fn services_sql(ids: &[TraceId]) -> String {
    let root = "case when parent_span_id is null then";
    format!(
        "select trace_id, service, count(*) as spans, sum(case when status = 'error' then 1 else 0 end) as errors, \
                min(start_ns) as start_ns, max(coalesce(end_ns, start_ns)) as end_ns, min({root} start_ns end) as root_ns, \
                first_value({root} name end order by {root} 0 else 1 end, start_ns, span_id) as root \
         from spans where trace_id in ({}) group by trace_id, service order by trace_id, service",
        sql_trace_ids(ids)
    )
}

/// How many spans of each trace name a parent that the trace does not have. Columns: trace_id, orphans.
pub fn orphans_sql(ids: &[TraceId]) -> String {
    let ids = sql_trace_ids(ids);
    format!(
        "select c.trace_id, count(*) as orphans \
         from (select trace_id, parent_span_id from spans where trace_id in ({ids}) and parent_span_id is not null) c \
         left anti join (select trace_id, span_id from spans where trace_id in ({ids})) p \
           on c.trace_id = p.trace_id and c.parent_span_id = p.span_id \
         group by c.trace_id"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_caller_stays_text() {
        let search = TraceSearch {
            service: Some("it's; drop".into()),
            name: Some("50%_*".into()),
            attributes: vec![("k'".into(), "v\"'".into())],
            ..TraceSearch::default()
        };
        let sql = search.sql();
        assert!(sql.contains("service = 'it''s; drop'"), "{sql}");
        assert!(sql.contains("name like '50\\%\\_%'"), "{sql}");
        assert!(sql.contains("attr_json(start_attrs, 'k''') in ('\"v\\\"''\"', 'v\"''')"), "{sql}");
    }
}
