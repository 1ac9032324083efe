"""OTLP requests made by hand, so that every acknowledged span is known by number."""

import time

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


def attribute(key, value):
    kind = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}[type(value)]
    return KeyValue(key=key, value=AnyValue(**{kind: value}))


def span(number, **changes):
    start = time.time_ns() - 1_000_000
    fields = {
        "trace_id": (number // 10 + 1).to_bytes(16, "big"),
        "span_id": (number + 1).to_bytes(8, "big"),
        "name": f"work {number % 7}",
        "kind": Span.SPAN_KIND_INTERNAL,
        "start_time_unix_nano": start,
        "end_time_unix_nano": start + 500_000,
        "attributes": [attribute("number", number), attribute("half", number / 2), attribute("text", f"text {number}")],
    }
    fields.update(changes)
    return Span(**fields)


def request(spans, service="test", **resource):
    message = ExportTraceServiceRequest()
    group = message.resource_spans.add()
    group.resource.attributes.append(attribute("service.name", service))
    for key, value in resource.items():
        group.resource.attributes.append(attribute(key.replace("__", "."), value))
    group.scope_spans.add().spans.extend(spans)
    return message


def records(run_id, *wanted):
    """A message of log records: (event name, body, attributes, time)."""
    message = ExportLogsServiceRequest()
    group = message.resource_logs.add()
    group.resource.attributes.append(attribute("rl.run.id", run_id))
    scope = group.scope_logs.add()
    for name, body, attributes, at in wanted:
        record = scope.log_records.add(event_name=name, time_unix_nano=at)
        record.body.CopyFrom(body)
        record.attributes.extend(attribute(k, v) for k, v in attributes.items())
    return message
