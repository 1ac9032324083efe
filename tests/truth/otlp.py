"""OTLP traces as bytes. Written by hand because a run has tens of thousands of spans and the protobuf library is slow."""

from functools import lru_cache
from struct import pack

INTERNAL, SERVER, CLIENT = 1, 2, 3


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def part(field, content):
    """A field that has a length: text, bytes or a message."""
    return varint(field << 3 | 2) + varint(len(content)) + content


@lru_cache(200_000)
def attribute(key, value, kind):
    if kind is bool:
        any_value = b"\x10" + varint(int(value))
    elif kind is int:
        any_value = b"\x18" + varint(value & (2**64 - 1))
    elif kind is float:
        any_value = b"\x21" + pack("<d", value)
    else:
        any_value = part(1, value.encode())
    return part(1, key.encode()) + part(2, any_value)


def attributes(field, values):
    return b"".join([part(field, attribute(key, value, type(value))) for key, value in values.items()])


@lru_cache(100_000)
def name_field(name):
    return part(5, name.encode())


def span(trace, span_id, parent, name, start_ns, end_ns, attrs, kind, links, error):
    """A span. `error` is a message or `None`."""
    out = [b"\x0a\x10", trace, b"\x12\x08", span_id]
    if parent:
        out += [b"\x22\x08", parent]
    out += [name_field(name), b"\x30", bytes((kind,)), b"\x39", pack("<Q", start_ns), b"\x41", pack("<Q", end_ns), attributes(9, attrs)]
    out += [part(13, part(1, t) + part(2, s)) for t, s in links]
    if error:
        out.append(part(15, part(2, error.encode()) + b"\x18\x02"))
    return b"".join(out)


def request(groups, scope="generated"):
    """An ExportTraceServiceRequest. `groups` are pairs of the attributes of a resource and its spans."""
    return b"".join(
        part(1, part(1, attributes(1, resource)) + part(2, part(1, part(1, scope.encode())) + b"".join([part(2, s) for s in spans])))
        for resource, spans in groups
    )
