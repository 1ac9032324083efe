// A reader for Arrow IPC streams: bytes in, typed arrays over those bytes out. Nothing is copied unless a buffer is
// misaligned. It reads every type that our tables and DataFusion's answers have; compressed bodies, unions and run-end
// encoding are refused by name. Every length and offset is checked against the bytes that are there.
// Why not the apache-arrow package: docs/adr/0004-page.md.

export class ArrowError extends Error {}

export type TypeName =
  | 'null'
  | 'int'
  | 'uint'
  | 'float'
  | 'bool'
  | 'utf8'
  | 'binary'
  | 'utf8view'
  | 'binaryview'
  | 'fixed'
  | 'decimal'
  | 'date'
  | 'time'
  | 'timestamp'
  | 'duration'
  | 'list'
  | 'fixedlist'
  | 'struct'
  | 'map';

export interface ArrowType {
  name: TypeName;
  /** Bits of a number, bytes of a fixed-size binary, length of a fixed-size list. */
  width: number;
  /** 64-bit offsets. */
  large?: boolean;
  /** Nanoseconds in one unit of a date, time, timestamp or duration. */
  unit?: bigint;
  scale?: number;
  timezone?: string;
}

export interface Field {
  name: string;
  nullable: boolean;
  type: ArrowType;
  children: Field[];
  /** Set where the column is dictionary-encoded; `type` is then the type of the values. */
  dictionary?: { id: bigint; index: ArrowType };
}

type Numbers =
  Int8Array | Int16Array | Int32Array | BigInt64Array | Uint8Array | Uint16Array | Uint32Array | BigUint64Array | Float32Array | Float64Array;

/** One column of one batch. */
export interface Vector {
  type: ArrowType;
  length: number;
  nullCount: number;
  validity: Uint8Array | null;
  /** Numbers, bits of booleans, bytes of fixed-size values, views; for a dictionary column the indices. */
  values: Numbers;
  offsets: Int32Array | BigInt64Array | null;
  /** Bytes of text and binary; for views the variadic buffers. */
  bytes: Uint8Array[];
  children: Vector[];
  names: string[];
  dictionary: Vector | null;
}

export interface Batch {
  length: number;
  columns: Vector[];
}

export interface ArrowStream {
  fields: Field[];
  batches: Batch[];
  /** Metadata of the schema. */
  metadata?: Record<string, string>;
}

const MAX_DEPTH = 32;
const MAX_FIELDS = 4096;
const utf8 = new TextDecoder();

/** Reads one table of a flatbuffer. Slots are numbered as in Arrow's definitions. */
class Fb {
  constructor(
    readonly view: DataView,
    readonly pos: number,
  ) {}

  static root(view: DataView): Fb {
    return new Fb(view, view.getUint32(0, true));
  }
  private at(slot: number): number {
    const vtable = this.pos - this.view.getInt32(this.pos, true);
    const entry = 4 + slot * 2;
    if (entry + 2 > this.view.getUint16(vtable, true)) return 0;
    const offset = this.view.getUint16(vtable + entry, true);
    return offset === 0 ? 0 : this.pos + offset;
  }
  i16(slot: number, otherwise = 0): number {
    const at = this.at(slot);
    return at ? this.view.getInt16(at, true) : otherwise;
  }
  i32(slot: number, otherwise = 0): number {
    const at = this.at(slot);
    return at ? this.view.getInt32(at, true) : otherwise;
  }
  i64(slot: number): bigint {
    const at = this.at(slot);
    return at ? this.view.getBigInt64(at, true) : 0n;
  }
  u8(slot: number, otherwise = 0): number {
    const at = this.at(slot);
    return at ? this.view.getUint8(at) : otherwise;
  }
  table(slot: number): Fb | null {
    const at = this.at(slot);
    return at ? new Fb(this.view, at + this.view.getUint32(at, true)) : null;
  }
  text(slot: number): string {
    const at = this.at(slot);
    if (!at) return '';
    const start = at + this.view.getUint32(at, true);
    const length = this.view.getUint32(start, true);
    return utf8.decode(new Uint8Array(this.view.buffer, this.view.byteOffset + start + 4, length));
  }
  /** Position of the first element and their number. */
  vector(slot: number): { at: number; length: number } {
    const at = this.at(slot);
    if (!at) return { at: 0, length: 0 };
    const start = at + this.view.getUint32(at, true);
    return { at: start + 4, length: this.view.getUint32(start, true) };
  }
  tables(slot: number): Fb[] {
    const { at, length } = this.vector(slot);
    if (length > MAX_FIELDS) throw new ArrowError(`more than ${MAX_FIELDS} fields`);
    return Array.from({ length }, (_, i) => new Fb(this.view, at + i * 4 + this.view.getUint32(at + i * 4, true)));
  }
}

const UNITS = [1_000_000_000n, 1_000_000n, 1_000n, 1n];

function readType(kind: number, t: Fb): ArrowType {
  switch (kind) {
    case 1:
      return { name: 'null', width: 0 };
    case 2:
      return { name: t.u8(1) ? 'int' : 'uint', width: t.i32(0) };
    case 3:
      return { name: 'float', width: [16, 32, 64][t.i16(0)] ?? 0 };
    case 4:
      return { name: 'binary', width: 0 };
    case 5:
      return { name: 'utf8', width: 0 };
    case 6:
      return { name: 'bool', width: 1 };
    case 7:
      return { name: 'decimal', width: t.i32(2, 128), scale: t.i32(1) };
    case 8:
      return t.i16(0, 1) === 0 ? { name: 'date', width: 32, unit: 86_400_000_000_000n } : { name: 'date', width: 64, unit: 1_000_000n };
    case 9:
      return { name: 'time', width: t.i32(1, 32), unit: UNITS[t.i16(0, 1)] };
    case 10:
      return { name: 'timestamp', width: 64, unit: UNITS[t.i16(0)], timezone: t.text(1) };
    case 12:
      return { name: 'list', width: 0 };
    case 13:
      return { name: 'struct', width: 0 };
    case 15:
      return { name: 'fixed', width: t.i32(0) };
    case 16:
      return { name: 'fixedlist', width: t.i32(0) };
    case 17:
      return { name: 'map', width: 0 };
    case 18:
      return { name: 'duration', width: 64, unit: UNITS[t.i16(0, 1)] };
    case 19:
      return { name: 'binary', width: 0, large: true };
    case 20:
      return { name: 'utf8', width: 0, large: true };
    case 21:
      return { name: 'list', width: 0, large: true };
    case 23:
      return { name: 'binaryview', width: 0 };
    case 24:
      return { name: 'utf8view', width: 0 };
    default:
      throw new ArrowError(`a column has Arrow type ${kind}, which this page cannot read`);
  }
}

/** What the flatbuffer may say and the rest of this module relies on. */
function checkField(f: Field): void {
  const { name, width, unit } = f.type;
  const ok = ((): boolean => {
    switch (name) {
      case 'int':
      case 'uint':
        return [8, 16, 32, 64].includes(width);
      case 'float':
        return width > 0;
      case 'date':
      case 'time':
      case 'timestamp':
      case 'duration':
        return unit !== undefined && (width === 32 || width === 64);
      case 'decimal':
        return [32, 64, 128, 256].includes(width);
      case 'fixed':
        return width >= 0;
      case 'list':
        return f.children.length === 1;
      case 'fixedlist':
        return width >= 0 && f.children.length === 1;
      case 'map':
        return f.children.length === 1 && f.children[0].type.name === 'struct' && f.children[0].children.length === 2;
      default:
        return true;
    }
  })();
  if (!ok || (f.dictionary && ![8, 16, 32, 64].includes(f.dictionary.index.width))) throw new ArrowError(`column ${f.name} has an impossible type`);
}

function readField(t: Fb, depth = 0): Field {
  if (depth > MAX_DEPTH) throw new ArrowError(`columns are nested deeper than ${MAX_DEPTH}`);
  const kind = t.table(3);
  if (!kind) throw new ArrowError('a column has no type');
  const field: Field = {
    name: t.text(0),
    nullable: t.u8(1) !== 0,
    type: readType(t.u8(2), kind),
    children: t.tables(5).map((c) => readField(c, depth + 1)),
  };
  const encoding = t.table(4);
  if (encoding) {
    const index = encoding.table(1);
    field.dictionary = {
      id: encoding.i64(0),
      index: index ? { name: index.u8(1) ? 'int' : 'uint', width: index.i32(0) } : { name: 'int', width: 32 },
    };
  }
  checkField(field);
  return field;
}

function small(n: bigint, what: string): number {
  if (n < 0n || n > 0x7fff_ffffn) throw new ArrowError(`${what} is out of range: ${n}`);
  return Number(n);
}

function numbers(type: ArrowType, raw: Uint8Array, length: number): Numbers {
  const { name, width } = type;
  const wide = width === 64;
  let make: { new (b: ArrayBufferLike, o: number, n: number): Numbers; BYTES_PER_ELEMENT: number };
  if (name === 'float') make = width === 32 ? Float32Array : wide ? Float64Array : Uint16Array;
  else if (name === 'uint') make = wide ? BigUint64Array : width === 32 ? Uint32Array : width === 16 ? Uint16Array : Uint8Array;
  else make = wide ? BigInt64Array : width === 32 ? Int32Array : width === 16 ? Int16Array : Int8Array;
  const size = make.BYTES_PER_ELEMENT;
  if (raw.byteLength < length * size) throw new ArrowError('a buffer is shorter than its column');
  if (raw.byteOffset % size !== 0) raw = raw.slice();
  return new make(raw.buffer, raw.byteOffset, length);
}

/** Takes the buffers of one record batch apart, in the order of its columns. */
class BodyReader {
  private node = 0;
  private buffer = 0;
  private variadic = 0;
  private readonly nodes: { at: number; length: number };
  private readonly buffers: { at: number; length: number };
  private readonly counts: { at: number; length: number };

  constructor(
    private readonly head: Fb,
    private readonly body: Uint8Array,
    private readonly dictionaries: Map<bigint, Vector>,
  ) {
    this.nodes = head.vector(1);
    this.buffers = head.vector(2);
    this.counts = head.vector(4);
    if (head.table(3)) throw new ArrowError('the answer is compressed inside Arrow; ask the server for an uncompressed stream');
  }

  private nextBuffer(): Uint8Array {
    if (this.buffer >= this.buffers.length) throw new ArrowError('a batch has too few buffers');
    const at = this.buffers.at + this.buffer++ * 16;
    const offset = small(this.head.view.getBigInt64(at, true), 'buffer offset');
    const length = small(this.head.view.getBigInt64(at + 8, true), 'buffer length');
    if (offset + length > this.body.byteLength) throw new ArrowError('a buffer lies outside its batch');
    return this.body.subarray(offset, offset + length);
  }

  read(field: Field): Vector {
    if (this.node >= this.nodes.length) throw new ArrowError('a batch has too few columns');
    const at = this.nodes.at + this.node++ * 16;
    const length = small(this.head.view.getBigInt64(at, true), 'column length');
    const nullCount = small(this.head.view.getBigInt64(at + 8, true), 'null count');
    const type = field.dictionary ? field.dictionary.index : field.type;
    const v: Vector = {
      type: field.type,
      length,
      nullCount,
      validity: null,
      values: new Uint8Array(0),
      offsets: null,
      bytes: [],
      children: [],
      names: field.children.map((c) => c.name),
      dictionary: null,
    };
    if (type.name === 'null') return { ...v, nullCount: length };
    const bits = this.nextBuffer();
    if (nullCount > 0) {
      if (bits.byteLength * 8 < length) throw new ArrowError('a validity buffer is too short');
      v.validity = bits;
    }
    const need = (raw: Uint8Array, bytes: number): Uint8Array => {
      if (raw.byteLength < bytes) throw new ArrowError('a buffer is shorter than its column');
      return raw;
    };
    const readOffsets = (): void => {
      const raw = this.nextBuffer();
      if (length === 0 && raw.byteLength === 0) v.offsets = new Int32Array(1);
      else v.offsets = numbers({ name: 'int', width: type.large ? 64 : 32 }, raw, length + 1) as Int32Array;
    };
    switch (type.name) {
      case 'bool':
        v.values = need(this.nextBuffer(), Math.ceil(length / 8));
        break;
      case 'fixed':
        v.values = need(this.nextBuffer(), length * type.width);
        break;
      case 'decimal':
        v.values = need(this.nextBuffer(), (length * type.width) / 8);
        break;
      case 'utf8':
      case 'binary':
        readOffsets();
        v.bytes = [this.nextBuffer()];
        break;
      case 'utf8view':
      case 'binaryview': {
        v.values = need(this.nextBuffer(), length * 16);
        if (this.variadic >= this.counts.length) throw new ArrowError('a batch has too few variadic counts');
        const n = small(this.head.view.getBigInt64(this.counts.at + 8 * this.variadic++, true), 'variadic count');
        for (let i = 0; i < n; i++) v.bytes.push(this.nextBuffer());
        break;
      }
      case 'list':
      case 'map':
        readOffsets();
        v.children = field.children.map((c) => this.read(c));
        break;
      case 'fixedlist':
      case 'struct':
        v.children = field.children.map((c) => this.read(c));
        break;
      default:
        v.values = numbers(type, this.nextBuffer(), length);
    }
    const least = type.name === 'struct' ? length : type.name === 'fixedlist' ? length * type.width : 0;
    if (v.children.some((c) => c.length < least)) throw new ArrowError('a nested column is shorter than its parent');
    if (field.dictionary) {
      const dictionary = this.dictionaries.get(field.dictionary.id);
      if (!dictionary) throw new ArrowError(`dictionary ${field.dictionary.id} of column ${field.name} is missing`);
      v.dictionary = dictionary;
    }
    return v;
  }
}

function dictionaryFields(fields: Field[], into: Map<bigint, Field>): void {
  for (const f of fields) {
    if (f.dictionary) into.set(f.dictionary.id, { ...f, dictionary: undefined });
    dictionaryFields(f.children, into);
  }
}

/** Values appended to a dictionary by a delta. Rare; done on decoded values. */
function concatText(a: Vector, b: Vector): Vector {
  const texts = [a, b].flatMap((v) => Array.from({ length: v.length }, (_, i) => String(valueAt(v, i) ?? '')));
  const parts = texts.map((t) => new TextEncoder().encode(t));
  const offsets = new Int32Array(parts.length + 1);
  parts.forEach((p, i) => (offsets[i + 1] = offsets[i] + p.length));
  const bytes = new Uint8Array(offsets[parts.length]);
  parts.forEach((p, i) => bytes.set(p, offsets[i]));
  return { ...a, type: { name: 'utf8', width: 0 }, length: parts.length, nullCount: 0, validity: null, offsets, bytes: [bytes] };
}

/** Reads a whole stream. A stream that stops in the middle of a message is an error: half an answer is no answer. */
export function readStream(input: Uint8Array): ArrowStream {
  const bytes = input.byteOffset % 8 === 0 ? input : input.slice();
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const dictionaries = new Map<bigint, Vector>();
  const dictionaryTypes = new Map<bigint, Field>();
  let fields: Field[] | null = null;
  const metadata = Object.create(null) as Record<string, string>;
  const batches: Batch[] = [];
  let pos = 0;
  let ended = false;
  try {
    while (pos + 4 <= bytes.byteLength) {
      let size = view.getInt32(pos, true);
      pos += 4;
      if (size === -1) {
        size = view.getInt32(pos, true);
        pos += 4;
      }
      if (size === 0) {
        ended = true;
        break;
      }
      if (size < 0 || pos + size > bytes.byteLength) throw new ArrowError('the stream is incomplete');
      const message = Fb.root(new DataView(bytes.buffer, bytes.byteOffset + pos, size));
      pos += size;
      const bodyLength = small(message.i64(3), 'body length');
      if (pos + bodyLength > bytes.byteLength) throw new ArrowError('the stream is incomplete');
      const body = bytes.subarray(pos, pos + bodyLength);
      pos += bodyLength;
      const header = message.table(2);
      if (!header) continue;
      switch (message.u8(1)) {
        case 1:
          if (header.i16(0) !== 0) throw new ArrowError('big-endian Arrow data is not supported');
          fields = header.tables(1).map((f) => readField(f));
          dictionaryFields(fields, dictionaryTypes);
          for (const pair of header.tables(2)) metadata[pair.text(0)] = pair.text(1);
          break;
        case 2: {
          const id = header.i64(0);
          const field = dictionaryTypes.get(id);
          const data = header.table(1);
          if (!field || !data) throw new ArrowError(`dictionary ${id} belongs to no column`);
          const values = new BodyReader(data, body, dictionaries).read(field);
          const old = dictionaries.get(id);
          dictionaries.set(id, header.u8(2) && old ? concatText(old, values) : values);
          break;
        }
        case 3: {
          if (!fields) throw new ArrowError('a batch came before the schema');
          const reader = new BodyReader(header, body, dictionaries);
          const length = small(header.i64(0), 'batch length');
          const columns = fields.map((f) => reader.read(f));
          if (columns.some((c) => c.length !== length)) throw new ArrowError('the columns of a batch differ in length');
          batches.push({ length, columns });
          break;
        }
      }
    }
  } catch (e) {
    if (e instanceof RangeError) throw new ArrowError('the Arrow stream is damaged');
    throw e;
  }
  if (!fields) throw new ArrowError('this is not an Arrow stream');
  if (!ended) throw new ArrowError('the stream is incomplete');
  return { fields, batches, metadata };
}

export function isNull(v: Vector, i: number): boolean {
  if (v.type.name === 'null' && !v.dictionary) return true;
  return v.validity !== null && (v.validity[i >> 3] & (1 << (i & 7))) === 0;
}

const HEX = Array.from({ length: 256 }, (_, b) => b.toString(16).padStart(2, '0'));
export const hex = (bytes: Uint8Array): string => {
  let out = '';
  for (let i = 0; i < bytes.length; i++) out += HEX[bytes[i]];
  return out;
};

function span(v: Vector, i: number): [number, number] {
  const offsets = v.offsets!;
  const [from, to] = [Number(offsets[i]), Number(offsets[i + 1])];
  if (from < 0 || to < from) throw new ArrowError('offsets run backwards');
  return [from, to];
}

/** Short plain text is quicker by hand than through the decoder. */
function textOf(bytes: Uint8Array, from: number, to: number): string {
  if (to - from > 24) return utf8.decode(bytes.subarray(from, to));
  let out = '';
  for (let i = from; i < to; i++) {
    if (!(bytes[i] < 128)) return utf8.decode(bytes.subarray(from, to));
    out += String.fromCharCode(bytes[i]);
  }
  return out;
}

function viewBytes(v: Vector, i: number): Uint8Array {
  const raw = v.values as Uint8Array;
  const d = new DataView(raw.buffer, raw.byteOffset + i * 16, 16);
  const length = d.getInt32(0, true);
  if (length < 0) throw new ArrowError('a text has a negative length');
  if (length <= 12) return raw.subarray(i * 16 + 4, i * 16 + 4 + length);
  const from = d.getInt32(12, true);
  return v.bytes[d.getInt32(8, true)]?.subarray(from, from + length) ?? new Uint8Array(0);
}

function half(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

function decimal(raw: Uint8Array, scale: number): string {
  let n = 0n;
  for (let i = raw.length - 1; i >= 0; i--) n = (n << 8n) | BigInt(raw[i]);
  n = BigInt.asIntN(raw.length * 8, n);
  if (scale <= 0) return (n * 10n ** BigInt(-scale)).toString();
  const digits = (n < 0n ? -n : n).toString().padStart(scale + 1, '0');
  return `${n < 0n ? '-' : ''}${digits.slice(0, -scale)}.${digits.slice(-scale)}`;
}

/** An instant as ISO text with nanoseconds where it has them. */
export function isoTime(ns: bigint): string {
  const second = 1_000_000_000n;
  let seconds = ns / second;
  let rest = ns % second;
  if (rest < 0n) {
    rest += second;
    seconds -= 1n;
  }
  const date = new Date(Number(seconds) * 1000);
  if (Number.isNaN(date.getTime())) return `${ns} ns`;
  const fraction =
    rest === 0n
      ? ''
      : `.${rest
          .toString()
          .padStart(9, '0')
          .replace(/(000)+$/, '')}`;
  return `${date.toISOString().slice(0, 19)}${fraction}Z`;
}

/** Anything in a column as a JavaScript value: bigint for 64-bit integers, hex for binary, text for times, objects for maps. */
export function valueAt(v: Vector, i: number): unknown {
  if (isNull(v, i)) return null;
  if (v.dictionary) {
    const index = Number(v.values[i]);
    return index < v.dictionary.length ? valueAt(v.dictionary, index) : null;
  }
  const { type } = v;
  switch (type.name) {
    case 'null':
      return null;
    case 'bool':
      return ((v.values as Uint8Array)[i >> 3] & (1 << (i & 7))) !== 0;
    case 'float':
      return type.width === 16 ? half(Number(v.values[i])) : v.values[i];
    case 'int':
    case 'uint':
      return v.values[i];
    case 'utf8':
      return textOf(v.bytes[0], ...span(v, i));
    case 'binary':
      return hex(v.bytes[0].subarray(...span(v, i)));
    case 'utf8view':
      return utf8.decode(viewBytes(v, i));
    case 'binaryview':
      return hex(viewBytes(v, i));
    case 'fixed':
      return hex((v.values as Uint8Array).subarray(i * type.width, (i + 1) * type.width));
    case 'decimal':
      return decimal((v.values as Uint8Array).subarray((i * type.width) / 8, ((i + 1) * type.width) / 8), type.scale ?? 0);
    case 'timestamp':
      return isoTime(BigInt(v.values[i]) * type.unit!);
    case 'date':
      return isoTime(BigInt(v.values[i]) * type.unit!).slice(0, 10);
    case 'time':
      return isoTime(BigInt(v.values[i]) * type.unit!).slice(11, -1);
    case 'duration':
      return `${BigInt(v.values[i]) * type.unit!} ns`;
    case 'struct':
      return Object.fromEntries(v.names.map((name, c) => [name, valueAt(v.children[c], i)]));
    case 'list':
    case 'fixedlist': {
      const [from, to] = type.name === 'list' ? span(v, i) : [i * type.width, (i + 1) * type.width];
      const out: unknown[] = [];
      for (let j = from; j < Math.min(to, v.children[0].length); j++) out.push(valueAt(v.children[0], j));
      return out;
    }
    case 'map': {
      const [from, to] = span(v, i);
      const [keys, values] = v.children[0].children;
      const out: [string, unknown][] = [];
      for (let j = from; j < Math.min(to, v.children[0].length); j++) out.push([String(valueAt(keys, j)), valueAt(values, j)]);
      // Null prototype and own properties only: a key named __proto__ is a key like any other.
      const object = Object.create(null) as Record<string, unknown>;
      for (const [k, x] of out) object[k] = x;
      return object;
    }
  }
}

export function typeText(f: Field): string {
  const t = f.type;
  const base = ((): string => {
    switch (t.name) {
      case 'int':
      case 'uint':
      case 'float':
        return `${t.name}${t.width}`;
      case 'fixed':
        return `binary(${t.width})`;
      case 'utf8view':
        return 'utf8';
      case 'binaryview':
        return 'binary';
      case 'list':
      case 'fixedlist':
        return `list<${f.children[0] ? typeText(f.children[0]) : '?'}>`;
      case 'struct':
        return `struct<${f.children.map((c) => c.name).join(', ')}>`;
      default:
        return t.name;
    }
  })();
  return f.dictionary ? `dict<${base}>` : base;
}

/** One row as an object, or null past the end. */
export function rowAt<Name extends string = string>(stream: ArrowStream, i: number): Partial<Record<Name, unknown>> | null {
  for (const b of stream.batches) {
    if (i < b.length) return rowOf(stream, b, i);
    i -= b.length;
  }
  return null;
}

/** Rows as objects. For small answers only. `Name`: the columns that there may be. */
export function rows<Name extends string = string>(stream: ArrowStream): Partial<Record<Name, unknown>>[] {
  return stream.batches.flatMap((b) => Array.from({ length: b.length }, (_, i) => rowOf<Name>(stream, b, i)));
}

const rowOf = <Name extends string>(stream: ArrowStream, b: ArrowStream['batches'][number], i: number): Partial<Record<Name, unknown>> =>
  Object.fromEntries(stream.fields.map((f, c) => [f.name, valueAt(b.columns[c], i)])) as Partial<Record<Name, unknown>>;
